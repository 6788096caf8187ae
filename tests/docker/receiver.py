"""Webhook receiver that prints the traceparent of each post."""

from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    """Handler that accepts every post."""

    def do_POST(self) -> None:
        """Respond with 204, and print the traceparent."""
        self.rfile.read(int(self.headers["Content-Length"]))
        print("posted in", self.headers.get("traceparent"), flush=True)
        self.send_response(204)
        self.end_headers()


HTTPServer(("", 80), Handler).serve_forever()
