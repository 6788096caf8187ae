/** Parser of server-sent events. The browser's EventSource can send neither a POST request nor headers. */

const MAX_LENGTH = 64 * 1024 * 1024;

/** Yield `{ id, event, data }` for each event of `body`. `id` is the newest id, or null before the first id. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let id = null;
  let event = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return; // an event without an empty line after it is incomplete
      buffer += value;
      if (buffer.length > MAX_LENGTH) throw new Error("An event of the stream is too large for this page.");
      if (!/[\r\n]/.test(value)) continue;
      const lines = buffer.split(/\r\n|\n|\r(?!$)/); // a "\r" at the end may be half of "\r\n"
      buffer = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { id, event: event || "message", data: data.join("\n") };
          event = "";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        const name = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
        if (name === "data") data.push(text);
        else if (name === "event") event = text;
        else if (name === "id" && !text.includes("\0")) id = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
