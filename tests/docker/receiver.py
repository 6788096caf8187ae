"""A webhook's receiver: prints the traceparent of each post."""

from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    """Takes every post."""

    def do_POST(self) -> None:
        """Answers 204."""
        self.rfile.read(int(self.headers["Content-Length"]))
        print("posted in", self.headers.get("traceparent"), flush=True)
        self.send_response(204)
        self.end_headers()


HTTPServer(("", 80), Handler).serve_forever()
