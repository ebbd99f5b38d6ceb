"""What the viewer does to jobs: a page that is left, a second drop or a late answer ends none."""

import re

from playwright.sync_api import expect

DROP = "Drop an image, a volume or a study"


def job_of(route) -> str:
    return re.search("/jobs/([0-9a-f]{32})/", route.request.url)[1]


def held_events(page) -> list:
    """Events of jobs, which do not come until a test lets them: the page takes them for running."""
    held: list = []
    page.route("**/jobs/*/events", lambda route: held.append(route))
    return held


def wait_until(page, is_so) -> None:
    for _ in range(600):
        if is_so():
            return
        page.wait_for_timeout(100)
    raise AssertionError("waited for a minute")


def test_a_second_drop_and_a_page_that_is_left_end_no_job(page, service, pictures):
    wishes = []
    page.on("request", lambda asked: asked.method != "GET" and wishes.append(asked.url))
    held = held_events(page)
    for number, picture in enumerate(pictures["test-normal"][:3]):
        page.get_by_label(DROP, exact=True).set_input_files(picture)
        wait_until(page, lambda wanted=number: len(held) > wanted)
    first, second, third = map(job_of, held)
    rows = page.locator(".status > div")
    expect(rows).to_have_count(3)
    held[0].continue_()
    expect(rows.nth(2)).to_contain_text("Scored. Open the result")
    expect(rows.locator("progress")).to_have_count(2)
    page.get_by_role("link", name="Results").click()
    page.get_by_role("heading", name="Results").wait_for()
    for job in (first, second, third):
        wait_until(page, lambda job=job: service.get(f"jobs/{job}")["status"] == "done")
    assert len(wishes) == 3, wishes  # the uploads


def test_the_last_of_several_drops_is_opened_when_nothing_else_runs(page, pictures):
    held = held_events(page)
    for number, picture in enumerate(pictures["test-normal"][:2]):
        page.get_by_label(DROP, exact=True).set_input_files(picture)
        wait_until(page, lambda wanted=number: len(held) > wanted)
    held[0].continue_()
    expect(page.get_by_text("Open the result")).to_be_visible()
    held[1].continue_()
    page.wait_for_url(re.compile(f"#/job/{job_of(held[1])}"))
    page.locator(".banner h2").wait_for()


_SUBMIT = """async (step) => {
  const sent = [];
  const realFetch = window.fetch;
  window.fetch = async (url, options) => {
    if (!options.method) return realFetch(url, options); // of the page behind
    sent.push(`${options.method} ${new URL(url).pathname}`);
    return new Response("{}");
  };
  window.XMLHttpRequest = class {
    upload = {};
    open() { window.call = this; }
    send() {}
    abort() { sent.push("aborted"); this.onabort(); }
    getResponseHeader() { return null; }
  };
  const { submit } = await import("/static/submit.js");
  const left = new AbortController();
  const { element, finished } = submit("x", new FormData(), left.signal);
  const ended = finished.then(() => "done", (error) => error.name);
  const answer = (status, text) => {
    Object.assign(call, { status, responseText: text });
    call.onload();
  };
  if (step !== "sending") call.upload.onload();
  if (step === "left") left.abort();
  else element.querySelector("button").click();
  const outcome = step === "left" ? "" : await ended; // told at once, before the answer is there
  if (step === "token") answer(401, "{}");
  else if (step !== "sending") answer(202, '{"id": "7"}');
  await ended;
  await new Promise((resolve) => setTimeout(resolve, 50));
  window.fetch = realFetch;
  return [outcome, ...sent];
}"""


def test_cancel_holds_whenever_it_comes(page):
    def cancelled_while(step):
        return page.evaluate(_SUBMIT, step)

    assert cancelled_while("sending") == ["AbortError", "aborted"]
    # All is sent, so there may be a job: it is cancelled when the answer names it.
    assert cancelled_while("checking") == ["AbortError", "POST /api/v1/jobs/7/cancel"]
    # Neither asked for a token nor sent again.
    assert cancelled_while("token") == ["AbortError"]
    assert cancelled_while("left") == [""]


_STAGE = """async (stage) => {
  const { stageInWords } = await import("/static/submit.js");
  return stageInWords({ status: "queued", progress: { done: 0, total: 3, stage } })[0];
}"""


def test_a_job_says_what_it_waits_for(page):
    assert page.evaluate(_STAGE, "queued") == "Waiting for a free worker…"
    assert page.evaluate(_STAGE, "no room") == "Waiting for room on the service's disk…"


def made_up_jobs(*, status="done", first=0):
    return [
        {
            "id": f"{first + n:032x}",
            "kind": "score",
            "status": "running" if n == 0 and status == "running" else "done",
            "bundle": "brain",
            "names": [f"scan-{first + n}.png"],
            "content": "",
            "images": 1,
            "progress": {"done": 0, "total": 1, "stage": "score"},
            "error": "",
            "result": None,
            "created": 1.0,
        }
        for n in range(100)
    ]


def test_the_list_stays_under_the_pointer_and_asks_before_it_deletes(page):
    listed, asked, said, answers = made_up_jobs(status="running"), [], [], []
    page.route("**/api/v1/jobs?limit=100", lambda route: route.fulfill(json=listed))
    page.route("**/api/v1/jobs?limit=100&before=*", lambda route: route.fulfill(json=listed[:1]))

    def take(route):
        asked.append((route.request.method, route.request.url.partition("/jobs/")[2]))
        route.fulfill(status=204)

    page.route(re.compile("/api/v1/jobs/0"), take)

    def answer(dialog):
        said.append(dialog.message)
        dialog.accept() if answers.pop() else dialog.dismiss()

    page.on("dialog", answer)
    page.get_by_role("link", name="Results").click()
    page.get_by_role("button", name="Delete scan-1.png").evaluate("button => button.id = 'same'")
    listed[:] = [made_up_jobs(first=500)[0], *listed[:-1]]
    page.get_by_role("button", name="Delete scan-500.png").wait_for()  # the list came again
    expect(page.locator("#same")).to_have_attribute("aria-label", "Delete scan-1.png")
    for agreed, name in (
        (False, "Delete scan-1.png"),
        (True, "Delete scan-1.png"),
        (True, "Cancel scan-0.png"),
    ):
        answers.append(agreed)
        page.get_by_role("button", name=name).click()
    wait_until(page, lambda: len(asked) == 2)
    assert asked == [("DELETE", f"{1:032x}"), ("POST", f"{0:032x}/cancel")]
    assert ["scan-1.png" in said[0], "scan-0.png" in said[2], len(said)] == [True, True, 3]
    page.get_by_role("link", name="Older").click()
    page.wait_for_url(re.compile(f"#/results/{listed[-1]['id']}"))
    page.get_by_role("link", name="Newest").click()
    page.get_by_role("button", name="Delete scan-98.png").wait_for()


def test_a_late_error_replaces_no_other_page(page, service, mixed_picture, expected_errors):
    expected_errors += ["500", "/cases", "limit=200"]
    page.route("**/api/v1/jobs?limit=200", lambda route: route.fulfill(status=500))
    page.get_by_label(DROP, exact=True).set_input_files(mixed_picture)
    page.wait_for_url(re.compile("#/job/"))
    # Nothing to compare with is no reason to hide a result.
    page.locator(".banner h2").wait_for()
    held: list = []
    page.route("**/jobs/*/cases", lambda route: held.append(route))
    page.reload()
    wait_until(page, lambda: held)
    page.get_by_role("link", name="Fit", exact=True).click()
    page.get_by_role("heading", name="Fit a detector").wait_for()
    held[0].fulfill(status=500)
    page.wait_for_timeout(300)
    expect(page.get_by_role("heading", name="Fit a detector")).to_be_visible()
