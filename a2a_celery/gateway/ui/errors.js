/** Class for errors of A2A, HTTP and the connection, with the typed details that the server sent. */

export class A2AError extends Error {
  /** `status` is the HTTP status, or 0 without a response. `details` is a list of google.rpc error details. */
  constructor(message, { status = 0, code = null, details = [], retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
    this.otherDetails = [];
    for (const detail of Array.isArray(details) ? details : []) this.#addDetail(detail);
    this.reason ??= REASON_OF_CODE[code] ?? null;
  }

  /** True if the server does not have the operation. */
  get isUnsupported() {
    return (
      ["METHOD_NOT_FOUND", "UNSUPPORTED_OPERATION"].includes(this.reason) ||
      [404, 405, 501].includes(this.status) && this.reason !== "TASK_NOT_FOUND"
    );
  }

  /** True if the error is temporary, so that the same request may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 500 && this.status !== 501;
  }

  #addDetail(detail) {
    const type = String(detail?.["@type"] ?? "");
    if (type.endsWith("google.rpc.ErrorInfo")) {
      this.reason = detail.reason;
      this.metadata = detail.metadata;
    } else if (type.endsWith("google.rpc.BadRequest")) this.violations = detail.fieldViolations ?? [];
    else if (type.endsWith("google.rpc.RetryInfo")) this.retryAfter ??= parseFloat(detail.retryDelay) || null;
    else if (detail) this.otherDetails.push(detail);
  }
}

/** Reasons by JSON-RPC error code, for servers that send no details (A2A specification 5.4, 9.5). */
const REASON_OF_CODE = {
  [-32001]: "TASK_NOT_FOUND",
  [-32002]: "TASK_NOT_CANCELABLE",
  [-32003]: "PUSH_NOTIFICATION_NOT_SUPPORTED",
  [-32004]: "UNSUPPORTED_OPERATION",
  [-32005]: "CONTENT_TYPE_NOT_SUPPORTED",
  [-32006]: "INVALID_AGENT_RESPONSE",
  [-32008]: "EXTENSION_SUPPORT_REQUIRED",
  [-32009]: "VERSION_NOT_SUPPORTED",
  [-32601]: "METHOD_NOT_FOUND",
  [-32603]: "INTERNAL_ERROR",
};

/** Return the A2AError for an HTTP error response from the server or from a proxy. */
export async function errorOf(response) {
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  let body = null;
  try {
    body = await response.json();
  } catch {
    // the body is empty or a proxy's page, so the error has only the HTTP status
  }
  return errorFromBody(body?.error, response.status, retryAfter) ?? new A2AError("", { status: response.status, retryAfter });
}

export function errorFromBody(error, status, retryAfter = null) {
  if (error === null || typeof error !== "object") return null;
  const isRpcCode = typeof error.code === "number" && error.code < 0;
  return new A2AError(String(error.message ?? ""), {
    status,
    code: isRpcCode ? error.code : null,
    details: error.details ?? error.data,
    retryAfter,
  });
}

/** Return `error` as an A2AError. The text of a TypeError from fetch is dropped, because it states no cause. */
export const asError = (error) =>
  error instanceof A2AError ? error : new A2AError(error instanceof TypeError ? "" : String(error?.message ?? error));
