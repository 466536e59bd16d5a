// What the pages of the monitor do in the browser. Without it nothing is lost but convenience.
"use strict";

const AGAIN_MS = 5000;
const COMING_MS = 700;

// Times come in UTC. They are shown in the reader's zone, with UTC as the title.
function showLocalTimes(part) {
  const pad = (number, digits) => String(number).padStart(digits, "0");
  for (const each of part.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const date = `${pad(at.getFullYear(), 4)}-${pad(at.getMonth() + 1, 2)}-${pad(at.getDate(), 2)}`;
    const time = `${pad(at.getHours(), 2)}:${pad(at.getMinutes(), 2)}:${pad(at.getSeconds(), 2)}`;
    each.textContent = `${date} ${time}.${pad(at.getMilliseconds(), 3)}`;
  }
}
showLocalTimes(document);
document.getElementById("zone").textContent =
  `Times are in your time zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone}. Point at a time to see it in UTC.`;

// "/" goes to the search of sagas, unless the focus is in a text field.
document.addEventListener("keydown", (event) => {
  const writes = event.target instanceof Element && event.target.closest("input, select, textarea");
  if (event.key !== "/" || writes || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  document.getElementById("find").focus();
});

// Live parts are loaded again, unless the reader uses them: a marked box, an open part or the focus would be lost.
function busy(live) {
  return (
    document.hidden ||
    live.contains(document.activeElement) ||
    live.querySelector("details[open], input:checked") !== null ||
    String(window.getSelection()) !== ""
  );
}

async function renew() {
  const live = document.querySelector("[data-live]");
  let coming = document.querySelector("[data-coming]") !== null;
  if ((live !== null && !busy(live)) || coming) {
    try {
      const answer = await fetch(window.location.href, { credentials: "same-origin", headers: { "X-Live": "1" } });
      if (answer.ok && !answer.redirected) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const part = coming ? "#main" : "[data-live]";
        const there = document.querySelector(part);
        const fresh = page.querySelector(part);
        // Somebody may have got at it while the answer was under way.
        const free = there !== null && fresh !== null && (coming || !busy(there));
        if (free) {
          const shown = document.importNode(fresh, true);
          showLocalTimes(shown);
          there.replaceWith(shown);
        }
        coming = document.querySelector("[data-coming]") !== null;
      }
    } catch {
      // the monitor is away: what is shown stays, with its times
    }
  }
  window.setTimeout(renew, coming ? COMING_MS : AGAIN_MS);
}

window.setTimeout(renew, document.querySelector("[data-coming]") !== null ? COMING_MS : AGAIN_MS);
