"use strict";
// The dashboard: frames of /lazybatch/events as tables and pictures. Whatever the server names is
// put in as text.

const $ = (id) => document.getElementById(id);
const SPAN = 10_000; // of the timeline and of rates, milliseconds
const MINUTE = 60_000;
const COLOURS = 8;

const page = {
  events: null,
  token: null,
  retry: 0,
  paused: false,
  lastFrame: 0,
  colours: new Map(), // model name -> number of its colour
  history: new Map(), // model and version -> figures over the last minute
  lanes: new Map(), // engine -> slices of the last seconds
  homes: new Map(), // engine -> request -> sub-batch, of the frame before
  glow: new Map(), // engine and sub-batch -> until when a merge is shown
};

function node(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function colour(model) {
  if (!page.colours.has(model)) {
    page.colours.set(model, page.colours.size % COLOURS);
    legend();
  }
  return "c" + page.colours.get(model);
}

function legend() {
  const items = [...page.colours].map(([model, n]) =>
    node("li", {}, node("span", { class: `dot c${n}` }), model));
  $("legend").replaceChildren(...items);
}

function number(value, digits) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (digits !== undefined) return value.toFixed(digits);
  if (value === 0 || value >= 100) return value.toFixed(0);
  return value.toFixed(value >= 10 ? 1 : 2);
}

function time(ms) {
  if (ms === null || !Number.isFinite(ms)) return "–";
  if (ms >= 1000) return number(ms / 1000) + " s";
  return number(ms) + " ms";
}

function percent(part) {
  if (part === null || !Number.isFinite(part)) return "–";
  return (part < 1 && part > 0.9995 ? 99.9 : 100 * part).toFixed(1) + " %";
}

// --- figures ---------------------------------------------------------------------------------

/// Figures of a model at two times as rates between them.
function between(now, before) {
  const seconds = (now.t - before.t) / 1000;
  const rate = (key) => (seconds > 0 ? (now[key] - before[key]) / seconds : null);
  const ended = ["met", "violated", "shed"].map((key) => now[key] - before[key]);
  const all = ended[0] + ended[1] + ended[2];
  const launches = now.launches - before.launches;
  return {
    rate: rate("answered"),
    merges: rate("merges"),
    preemptions: rate("preemptions"),
    met: ended[0],
    ended: all,
    sla: all > 0 ? ended[0] / all : null,
    samples: now.samples - before.samples,
    launches,
    batch: launches > 0 ? (now.samples - before.samples) / launches : null,
    counts: now.latencies.map(([bound, num], i) => [bound, num - (before.latencies[i]?.[1] ?? 0)]),
    num: now.answered - before.answered,
  };
}

/// The latency below which a part of the answers lies, between the bounds of its count.
function quantile(counts, num, part) {
  if (!(num > 0)) return null;
  const wanted = part * num;
  let [low, below] = [0, 0];
  for (const [bound, upTo] of counts) {
    if (upTo >= wanted) {
      return upTo > below ? low + ((bound - low) * (wanted - below)) / (upTo - below) : bound;
    }
    [low, below] = [bound, upTo];
  }
  return low;
}

function remember(models, now) {
  const seen = new Set();
  for (const model of models) {
    const key = `${model.name}\n${model.version}`;
    seen.add(key);
    let past = page.history.get(key);
    if (!past || past.generation !== model.generation) {
      past = { generation: model.generation, points: [] };
      page.history.set(key, past);
    }
    past.points.push({ t: now, ...model });
    while (past.points[0].t < now - MINUTE) past.points.shift();
    const before = past.points.find((p) => p.t >= now - SPAN);
    past.rates = between(past.points.at(-1), before);
  }
  for (const key of page.history.keys()) if (!seen.has(key)) page.history.delete(key);
}

// --- drawing ---------------------------------------------------------------------------------

function tiles(models) {
  const all = [...page.history.values()].map((h) => h.rates);
  const sum = (list, key) => list.reduce((total, one) => total + (one[key] || 0), 0);
  const counts = [];
  for (const { counts: own } of all) {
    own.forEach(([bound, num], i) => (counts[i] = [bound, (counts[i]?.[1] ?? 0) + num]));
  }
  const num = sum(all, "num");
  const [ended, launches] = [sum(all, "ended"), sum(all, "launches")];
  $("t-rate").textContent = number(sum(all, "rate"));
  $("t-p50").textContent = time(quantile(counts, num, 0.5));
  $("t-p99").textContent = time(quantile(counts, num, 0.99));
  $("t-sla").textContent = percent(ended > 0 ? sum(all, "met") / ended : null);
  $("t-batch").textContent = launches > 0 ? number(sum(all, "samples") / launches) : "–";
  $("t-waiting").textContent = sum(models, "waiting");
  $("t-flight").textContent = sum(models, "in_flight");
}

function rows(models) {
  const made = models.map((m) => {
    const r = page.history.get(`${m.name}\n${m.version}`).rates;
    const name = node("th", { scope: "row" }, node("span", { class: "dot " + colour(m.name) }), m.name);
    const cells = [
      m.version, m.engine, number(r.rate), time(quantile(r.counts, r.num, 0.5)),
      time(quantile(r.counts, r.num, 0.99)), percent(r.sla), m.waiting, time(m.oldest_ms),
      m.in_flight, number(r.batch), number(r.merges), number(r.preemptions), m.answered, m.failed,
    ];
    const row = node("tr", {}, name, ...cells.map((c) => node("td", {}, String(c))));
    if (r.sla !== null && r.sla < 0.99) row.children[6].classList.add("bad");
    if (m.failed > 0) row.children[14].classList.add("bad");
    return row;
  });
  $("rows").replaceChildren(...made);
}

function tables(engines, now) {
  const made = engines.map((engine) => {
    const before = page.homes.get(engine.name) || new Map();
    const homes = new Map();
    const list = node("ul", { class: "subs", "aria-label": `Sub-batches of engine ${engine.name}` });
    for (const sub of [...engine.table].reverse()) {
      let joined = 0;
      for (const [request] of sub.members) {
        homes.set(request, sub.id);
        if (before.has(request) && before.get(request) !== sub.id) joined += 1;
      }
      const key = `${engine.name}\n${sub.id}`;
      if (joined > 0 && joined < sub.num_members) page.glow.set(key, now + 1500);
      const glows = (page.glow.get(key) || 0) > now;
      const state = sub.is_running ? "runs" : sub.has_started ? "parked" : "new";
      const chips = sub.members.slice(0, 24).map(([request, step]) =>
        node("span", {}, step > 0 ? `r${request} · ${step}` : `r${request}`));
      const hidden = sub.num_members - chips.length;
      if (hidden > 0) chips.push(node("span", {}, `+${hidden}`));
      list.append(node("li", {
        class: [colour(sub.model), state, glows ? "joined" : ""].join(" "),
      },
      node("span", { class: "state" }, glows ? `${state}, merged` : state),
      node("strong", {}, sub.model),
      node("span", { class: "at" }, sub.at),
      node("span", {}, `${sub.samples} ${sub.samples === 1 ? "sample" : "samples"}`),
      node("span", { class: "chips" }, ...chips)));
    }
    page.homes.set(engine.name, homes);
    const parts = [];
    if (engines.length > 1) parts.push(node("h3", {}, `Engine ${engine.name}`));
    if (engine.rule) parts.push(node("p", { class: "rule" }, "Decides by ", node("code", {}, engine.rule), "."));
    if (engine.table.length) parts.push(list);
    else parts.push(node("p", { class: "empty" }, "Nothing is in flight."));
    if (engine.more) parts.push(node("p", { class: "empty" }, `and ${engine.more} more`));
    return node("div", {}, ...parts);
  });
  for (const [key, until] of page.glow) if (until < now) page.glow.delete(key);
  $("engines").replaceChildren(...made);
}

function keepSlices(engines) {
  const names = new Set(engines.map((e) => e.name));
  for (const name of page.lanes.keys()) if (!names.has(name)) page.lanes.delete(name);
  for (const engine of engines) {
    let lane = page.lanes.get(engine.name);
    // A clock that is behind is that of another server.
    if (!lane || lane.now > engine.now) {
      lane = { slices: [] };
      page.lanes.set(engine.name, lane);
    }
    lane.now = engine.now;
    lane.slices.push(...engine.slices);
    const first = lane.slices.findIndex((s) => s.to > engine.now - SPAN);
    lane.slices.splice(0, first < 0 ? lane.slices.length : first);
    for (const slice of engine.slices) colour(slice.model);
  }
}

function timeline() {
  const canvas = $("timeline");
  const lanes = [...page.lanes];
  const [laneHeight, axis, left] = [84, 18, lanes.length > 1 ? 90 : 0];
  const height = lanes.length * laneHeight + axis;
  const width = canvas.clientWidth;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  const text = getComputedStyle(canvas).color;
  const inks = new Map();
  for (const dot of document.querySelectorAll("#legend .dot")) {
    inks.set(dot.parentElement.textContent, getComputedStyle(dot).color);
  }
  draw.font = "11px system-ui, sans-serif";
  const x = (ago) => left + (width - left) * (1 - ago / SPAN);
  draw.fillStyle = draw.strokeStyle = text;
  for (let s = 0; s <= 10; s += 2) {
    draw.globalAlpha = 0.18;
    draw.beginPath();
    draw.moveTo(x(s * 1000), 0);
    draw.lineTo(x(s * 1000), height - axis);
    draw.stroke();
    draw.globalAlpha = 0.75;
    draw.textAlign = s === 0 ? "right" : s === 10 ? "left" : "center";
    draw.fillText(s === 0 ? "now" : `-${s} s`, x(s * 1000), height - 5);
  }
  lanes.forEach(([name, lane], n) => {
    const bottom = (n + 1) * laneHeight - 2;
    const most = Math.max(8, ...lane.slices.map((s) => s.samples));
    draw.globalAlpha = 0.75;
    draw.fillStyle = text;
    draw.textAlign = "left";
    if (left) draw.fillText(name.slice(0, 14), 2, bottom - laneHeight / 2);
    draw.globalAlpha = 0.3;
    draw.fillRect(left, bottom, width - left, 1);
    draw.globalAlpha = 1;
    for (const slice of lane.slices) {
      const from = Math.max(left, x(lane.now - slice.from));
      const wide = Math.max(1, x(lane.now - slice.to) - from);
      const high = 4 + (laneHeight - 18) * (Math.log2(1 + slice.samples) / Math.log2(1 + most));
      draw.fillStyle = inks.get(slice.model) || text;
      draw.fillRect(from, bottom - high, wide, high);
      if (slice.merged > 0) {
        draw.fillStyle = text;
        draw.fillRect(from, bottom - high - 4, Math.max(wide, 2), 2);
      }
    }
  });
  const num = lanes.reduce((sum, [, lane]) => sum + lane.slices.reduce((n, s) => n + s.launches, 0), 0);
  const models = new Set(lanes.flatMap(([, lane]) => lane.slices.map((s) => s.model)));
  const label = num ? `${num} launches of ${[...models].join(", ")}` : "No launches";
  canvas.setAttribute("aria-label", `${label} in the last ten seconds`);
}

function slices() {
  if (!$("slices-details").open) return;
  const all = [];
  for (const [, lane] of page.lanes) {
    for (const slice of lane.slices.slice(-40)) all.push([lane.now - slice.to, slice]);
  }
  all.sort((a, b) => a[0] - b[0]);
  const made = all.slice(0, 40).map(([ago, s]) => node("tr", {},
    node("td", {}, time(ago)), node("td", {}, time(s.to - s.from)),
    node("td", { class: "text" }, s.model),
    node("td", { class: "text" }, s.launches > 1 ? `${s.launches} launches ${s.at}` : s.at),
    node("td", {}, String(s.samples)), node("td", {}, String(s.merged))));
  $("slices").replaceChildren(...made);
}

/// One line for each model over the last minute.
function chart(id, what, now, value) {
  const lines = [];
  let most = 0;
  for (const [key, { points }] of page.history) {
    const line = value(points);
    for (const [, y] of line) most = Math.max(most, y);
    lines.push([key.split("\n")[0], line]);
  }
  const top = Math.max(1, Math.ceil(most * 1.1));
  const made = lines.map(([model, line]) => {
    const points = line.map(([t, y]) =>
      `${(600 * (1 - (now - t) / MINUTE)).toFixed(1)},${(119 - 117 * (y / top)).toFixed(1)}`);
    return svg("polyline", { class: colour(model), points: points.join(" ") });
  });
  $(id).replaceChildren(...made);
  const latest = lines.map(([model, line]) => `${model} ${number(line.at(-1)?.[1] ?? 0)}`);
  $(id).setAttribute("aria-label", `${what}: ${latest.join(", ") || "nothing"}`);
  $(id + "-top").textContent = number(top, 0);
}

function rate(points) {
  const line = [];
  let before = 0;
  for (let i = 1; i < points.length; i++) {
    while (points[before].t < points[i].t - 2000) before++;
    const seconds = (points[i].t - points[before].t) / 1000;
    if (seconds > 0.5) {
      line.push([points[i].t, (points[i].answered - points[before].answered) / seconds]);
    }
  }
  return line;
}

function show(frame) {
  const now = performance.now();
  page.lastFrame = now;
  $("version").textContent = frame.version;
  frame.models.forEach((m) => colour(m.name));
  remember(frame.models, now);
  keepSlices(frame.engines);
  tiles(frame.models);
  tables(frame.engines, now);
  rows(frame.models);
  timeline();
  slices();
  chart("c-rate", "Answers per second", now, rate);
  chart("c-waiting", "Requests that wait", now, (points) => points.map((p) => [p.t, p.waiting]));
  status(frame.is_ready ? "live" : "stopping", frame.is_ready ? "live" : "the server is stopping");
}

// --- connection ------------------------------------------------------------------------------

function status(state, text) {
  const at = $("status");
  if (at.dataset.state !== state) at.dataset.state = state;
  if (at.textContent !== text) at.textContent = text;
}

// Not by EventSource, which cannot say who asks.
async function connect() {
  clearTimeout(page.retry);
  page.events?.abort();
  const events = new AbortController();
  page.events = events;
  try {
    const headers = page.token ? { authorization: `Bearer ${page.token}` } : {};
    const answer = await fetch("lazybatch/events", { headers, signal: events.signal });
    if (answer.status === 401) return ask();
    if (answer.ok) {
      keep(sessionStorage, "lazybatch-token", page.token ?? "");
      await frames(answer.body);
    }
  } catch {
    // The server has gone, or nobody looks any more.
  }
  if (page.events !== events) return;
  status("lost", "connection lost, trying again");
  page.retry = setTimeout(connect, 1000);
}

// Shows every frame of a stream of events, until it ends.
async function frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data: "));
      if (lines.length > 0) show(JSON.parse(lines.map((line) => line.slice(6)).join("\n")));
    }
  }
}

function ask() {
  status("lost", "needs a token");
  $("ask-why").textContent = page.token ? "The server does not know this token." : "";
  $("ask").hidden = false;
  $("token").focus();
}

function answer(event) {
  event.preventDefault();
  page.token = $("token").value.trim();
  $("token").value = "";
  // Others cannot be sent, and no server has them.
  if (!/^[A-Za-z0-9._~+/=-]+$/.test(page.token)) return ask();
  $("ask").hidden = true;
  status("connecting", "connecting");
  connect();
}

// Not everybody lets pages keep things.
function keep(storage, name, value) {
  try {
    storage.setItem(name, value);
  } catch {
    // Then it holds until the page is left.
  }
}

function kept(storage, name) {
  try {
    return storage.getItem(name);
  } catch {
    return null;
  }
}

function pause() {
  page.paused = !page.paused;
  $("pause").setAttribute("aria-pressed", String(page.paused));
  if (!page.paused) {
    status("connecting", "connecting");
    connect();
    return;
  }
  clearTimeout(page.retry);
  // Nobody looks, so the server makes no frames.
  const events = page.events;
  page.events = null;
  events?.abort();
  status("paused", "paused");
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme-name").textContent = name;
  timeline();
}

function nextTheme() {
  const at = THEMES.indexOf($("theme-name").textContent);
  const name = THEMES[(at + 1) % THEMES.length];
  keep(localStorage, "lazybatch-theme", name);
  theme(name);
}

$("pause").addEventListener("click", pause);
$("theme").addEventListener("click", nextTheme);
$("ask").addEventListener("submit", answer);
$("slices-details").addEventListener("toggle", slices);
addEventListener("resize", timeline);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", timeline);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.matches?.("input")) return;
  if (event.key === "p" || event.key === "P") pause();
  if (event.key === "t" || event.key === "T") nextTheme();
});
const chosen = kept(localStorage, "lazybatch-theme");
theme(THEMES.includes(chosen) ? chosen : "system");
page.token = kept(sessionStorage, "lazybatch-token");
connect();
