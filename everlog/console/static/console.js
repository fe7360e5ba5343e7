// What the console does beyond reading: times that tick, live parts, keys. Pages work without it.
"use strict";

document.documentElement.classList.add("js");

// Times: relative to now, with the exact one on hover.
const UNITS = [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"], [Infinity, 86400, "d"]];

function relative(then, now) {
  const seconds = Math.round(Math.abs(now - then) / 1000);
  if (seconds < 1) return "just now";
  const [, size, unit] = UNITS.find(([limit]) => seconds < limit);
  const text = `${Math.round(seconds / size).toLocaleString("en")} ${unit}`;
  return now > then ? `${text} ago` : `in ${text}`;
}

function tick(root) {
  const now = Date.now();
  for (const time of root.querySelectorAll("time")) {
    const text = relative(Date.parse(time.dateTime), now);
    if (time.textContent !== text) time.textContent = text;
  }
}

// Keys: "/" searches, Escape leaves the field.
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    const field = document.getElementById("q");
    field.focus();
    field.select();
  } else if (event.key === "Escape") {
    for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
    if (typing) document.activeElement.blur();
  }
});

// Choices that need no button, and copying.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-auto]")) event.target.form.requestSubmit();
});
document.addEventListener("input", (event) => {
  const output = event.target.form && event.target.form.querySelector(`output[for="${event.target.id}"]`);
  if (output) output.textContent = output.textContent.replace(/\d+$/, event.target.value);
});
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const done = () => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  if (navigator.clipboard) {
    navigator.clipboard.writeText(source.textContent).then(done, () => select(source));
  } else {
    select(source);
  }
});

function select(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
}

// Boxes: all of a list at once, and how many are ticked.
function boxes(form) {
  return [...document.querySelectorAll(`input[type=checkbox][form="${form}"]`)];
}

function count(form) {
  const all = boxes(form);
  const ticked = all.filter((one) => one.checked).length;
  for (const label of document.querySelectorAll(`[data-count="${form}"]`)) label.textContent = `${ticked} selected`;
  for (const box of document.querySelectorAll(`[data-all="${form}"]`)) {
    box.checked = ticked > 0 && ticked === all.length;
    box.indeterminate = ticked > 0 && ticked < all.length;
  }
}

document.addEventListener("change", (event) => {
  const { all } = event.target.dataset;
  if (all) for (const one of boxes(all)) one.checked = event.target.checked;
  const form = all || (event.target.type === "checkbox" && event.target.getAttribute("form"));
  if (form) count(form);
});

function show(root) {
  for (const box of root.querySelectorAll("[data-all]")) count(box.dataset.all);
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false;
  tick(root);
}

// Live: the server sends the part of the page that changes, whenever it does.
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const chip = document.getElementById("chip");
let source = null;
let waiting = null;
let pressed = false;
for (const type of ["pointerdown", "pointerup", "pointercancel"]) {
  addEventListener(type, () => { pressed = type === "pointerdown"; }, true);
}

function busy() {
  // The visitor types, clicks, chooses, reads a chart or marks text here: what is new waits until that is done.
  const active = document.activeElement;
  if (active && live.contains(active) && active.matches("input, select, textarea")) return true;
  if (pressed || live.querySelector("details.menu[open], .plot rect:hover")) return true;
  const marked = getSelection();
  return !marked.isCollapsed && live.contains(marked.anchorNode);
}

// A job has a box in each list that it is in: its name alone would not do.
function box(one) { return one.getAttribute("form") + " " + one.name; }

function place(html) {
  const open = new Set([...live.querySelectorAll("details[open][data-keep]")].map((one) => one.dataset.keep));
  const ticked = new Set([...live.querySelectorAll("input[type=checkbox][form]:checked")].map(box));
  const scrolled = [...live.querySelectorAll(".table")].map((one) => one.scrollLeft);
  const focused = live.contains(document.activeElement) ? describe(document.activeElement) : null;
  const parsed = new DOMParser().parseFromString(html, "text/html");
  live.replaceChildren(...parsed.body.childNodes);
  for (const one of live.querySelectorAll("details[data-keep]")) one.open = open.has(one.dataset.keep);
  for (const one of live.querySelectorAll("input[type=checkbox][form]")) one.checked = ticked.has(box(one));
  live.querySelectorAll(".table").forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
  if (focused) refocus(focused);
  show(live);
}

function describe(element) {
  const same = [...live.querySelectorAll(element.tagName)];
  return { tag: element.tagName, text: element.textContent, at: same.indexOf(element) };
}

function refocus({ tag, text, at }) {
  const same = [...live.querySelectorAll(tag)];
  const found = same[at] && same[at].textContent === text ? same[at] : same.find((one) => one.textContent === text);
  if (found) found.focus({ preventScroll: true });
}

function receive(event) {
  const frame = JSON.parse(event.data);
  chip.className = `chip ${frame.level}`;
  const text = frame.problems ? `${frame.problems} problem${frame.problems === 1 ? "" : "s"}` : "All well";
  if (chip.lastElementChild.textContent !== text) chip.lastElementChild.textContent = text;
  if (busy()) {
    waiting = frame.html;
  } else {
    waiting = null;
    place(frame.html);
  }
}

function say(text, off) {
  pause.textContent = text;
  pause.classList.toggle("off", off);
}

function begin() {
  source = new EventSource(live.dataset.stream);
  source.addEventListener("open", () => say("Live", false));
  source.addEventListener("fragment", receive);
  source.addEventListener("error", () => {
    const over = source.readyState === EventSource.CLOSED;
    say(over ? "Not live" : "Reconnecting", true);
    if (over) setTimeout(() => { if (pause.getAttribute("aria-pressed") === "false") begin(); }, 10000);
  });
}

function end() {
  if (source) source.close();
  source = null;
}

function setPaused(paused) {
  pause.setAttribute("aria-pressed", String(paused));
  say(paused ? "Paused" : "Live", false);
  const address = new URL(location.href);
  if (paused) address.searchParams.set("paused", "1");
  else address.searchParams.delete("paused");
  history.replaceState(null, "", address);
  if (paused) end();
  else begin();
}

show(document);
const current = document.querySelector(".side [aria-current]");
if (current) current.scrollIntoView({ block: "nearest", inline: "center" });
setInterval(() => {
  tick(document);
  if (waiting !== null && !busy()) {
    place(waiting);
    waiting = null;
  }
}, 1000);

if (live && live.dataset.stream && pause) {
  pause.hidden = false;
  pause.title = "Pause or resume live updates";
  pause.addEventListener("click", () => setPaused(pause.getAttribute("aria-pressed") !== "true"));
  if ("paused" in live.dataset) say("Paused", false);
  else begin();
  addEventListener("pagehide", end);
}
