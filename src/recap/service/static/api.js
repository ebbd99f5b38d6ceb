// The only file that knows addresses and shapes of the HTTP API.

const BASE = new URL("api/v1/", document.baseURI);

const IN_WORDS = {
  0: "The service cannot be reached. Check that it is running, then try again.",
  401: "The service needs a token.",
  403: "The token does not allow this.",
  404: "This is not here any more. It may have been deleted.",
  413: "The upload is larger than the service accepts.",
  415: "The service cannot read files of this kind.",
  422: "The service could not make sense of what was sent.",
  429: "The queue is full. Wait a little, then try again.",
  500: "The service failed. Its log says why.",
  503: "The service is not ready yet. Wait a little, then try again.",
  507: "The disk of the service is full.",
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message || IN_WORDS[status] || `The service answered with status ${status}.`);
    this.status = status;
  }
}

let askForToken = null;

/** The function that shows the token form; it resolves when there is a session. */
export function onUnauthorised(ask) {
  askForToken = ask;
}

/** An address of the API; every part is encoded, so names may hold anything. */
export function address(...parts) {
  return new URL(parts.map((part) => encodeURIComponent(part)).join("/"), BASE).href;
}

export async function getJson(target) {
  return (await request(target)).json();
}

export async function send(method, target, body) {
  const json =
    body === undefined
      ? {}
      : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return request(target, { method, ...json });
}

/** A map's values: { data, height, width }. */
export async function getMap(target) {
  const response = await request(target);
  const bytes = await response.arrayBuffer();
  const shape = (response.headers.get("X-Shape") || "").match(/\d+/g)?.map(Number) ?? [];
  const [height, width] = shape.slice(-2);
  if (!height || height * width * 4 !== bytes.byteLength)
    throw new ApiError(-1, "The map arrived damaged. Open the result again.");
  return { data: floats(bytes), height, width };
}

export async function getPicture(target) {
  return createImageBitmap(await (await request(target)).blob());
}

/** Upload a form; `progress(share)` while it goes. The signal ends it until all is sent: from then
 * on there may be a job, and only the answer tells which. */
export async function upload(target, form, progress, signal) {
  try {
    return await uploadOnce(target, form, progress, signal);
  } catch (error) {
    if (error.status !== 401 || !askForToken) throw error;
    if (!signal?.aborted) await askForToken();
    return uploadOnce(target, form, progress, signal);
  }
}

// Browsers open six connections to a service, and events hold one for as long as a job runs.
const MOST_EVENTS = 3;
let listening = 0;

/** Follow a job until it ends: events, or questions every second where events do not come. */
export function follow(job, onState) {
  let timer = null;
  let closed = false;
  let events = null;
  const hangUp = () => {
    if (events) listening -= 1;
    events?.close();
    events = null;
  };
  const close = () => {
    closed = true;
    hangUp();
    clearTimeout(timer);
  };
  const take = (state) => {
    if (closed) return;
    if (hasEnded(state)) close();
    onState(state);
  };
  const ask = async () => {
    try {
      take(await getJson(address("jobs", job)));
    } catch (error) {
      if (error.status === 404) take({ id: job, status: "failed", error: error.message });
    }
    if (!closed) timer = setTimeout(ask, 1000);
  };
  const askSoon = () => {
    hangUp();
    if (!closed && timer === null) timer = setTimeout(ask, 500);
  };
  if (listening < MOST_EVENTS) {
    listening += 1;
    events = new EventSource(address("jobs", job, "events"));
    events.onmessage = (event) => take(JSON.parse(event.data));
    events.onerror = askSoon;
  } else askSoon();
  return close;
}

/** What ends a promise that nobody waits for any more. */
export const cancelled = () => new DOMException("Cancelled", "AbortError");

export const hasEnded = (state) => ["done", "failed", "cancelled"].includes(state.status);

async function request(target, options = {}, again = true) {
  let response;
  try {
    response = await fetch(target, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0);
  }
  if (response.ok) return response;
  if (response.status === 401 && again && askForToken && !target.endsWith("/session")) {
    await askForToken();
    return request(target, options, false);
  }
  throw new ApiError(
    response.status,
    inWords(await response.text(), response.headers.get("Retry-After")),
  );
}

function uploadOnce(target, form, progress, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) throw cancelled();
    const call = new XMLHttpRequest();
    const abort = () => call.abort();
    call.open("POST", target);
    call.upload.onprogress = (event) =>
      event.lengthComputable && progress(event.loaded / event.total);
    call.onload = () => {
      if (call.status >= 200 && call.status < 300) resolve(JSON.parse(call.responseText));
      else
        reject(
          new ApiError(
            call.status,
            inWords(call.responseText, call.getResponseHeader("Retry-After")),
          ),
        );
    };
    call.onerror = () => reject(new ApiError(0));
    call.onabort = () => reject(cancelled());
    call.upload.onload = () => signal?.removeEventListener("abort", abort);
    signal?.addEventListener("abort", abort);
    call.send(form);
  });
}

/** The reason out of an answer, whichever of the usual forms it has. */
function inWords(text, retryAfter) {
  let reason = "";
  try {
    const body = JSON.parse(text);
    const said = body.detail ?? body.error ?? body.message ?? "";
    if (typeof said === "string") reason = said;
    else if (Array.isArray(said))
      reason = said.map((one) => `${(one.loc ?? []).slice(1).join(" ")}: ${one.msg}`).join("; ");
    else reason = said.message ?? "";
  } catch {
    reason = "";
  }
  if (reason && retryAfter && /^\d+$/.test(retryAfter))
    reason += ` (Try again in ${retryAfter} s.)`;
  return reason;
}

/** Little-endian float32, on any machine. */
function floats(bytes) {
  if (new Uint8Array(new Uint16Array([1]).buffer)[0] === 1) return new Float32Array(bytes);
  const view = new DataView(bytes);
  return Float32Array.from({ length: bytes.byteLength / 4 }, (_, i) =>
    view.getFloat32(4 * i, true),
  );
}
