// SPDX-License-Identifier: Apache-2.0
// Draws what /events sends once per second. Elements are kept and changed, so that focus, open
// details and scroll positions stay where the reader put them. All text goes in by textContent.
"use strict";

const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Numbers with an SI prefix, below `most` before it.
function quantity(number, unit = "", most = 9999.5) {
  const prefixes = ["", "k", "M", "G", "T"];
  let at = 0;
  while (Math.abs(number) >= most && at < prefixes.length - 1) {
    number /= 1000;
    at += 1;
  }
  const text = number >= 100 || Number.isInteger(number) ? Math.round(number) : number.toPrecision(3);
  return `${text} ${prefixes[at]}${unit}`.trim();
}

// [0, 1, 2, 5] of "rank": "ranks 0-2, 5".
function numbered(word, numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else runs.push([number, number]);
  }
  const text = runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
  return `${word}${numbers.length === 1 ? "" : "s"} ${text}`;
}

const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hourCycle: "h23" });

// Keeps one child per key, in order; `create` makes one, `update` changes it.
function keep(parent, items, key, create, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = String(key(item));
    let child = there.get(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    there.delete(name);
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null);
    update(child, item);
  });
  for (const gone of there.values()) gone.remove();
}

function facts(list, pairs) {
  keep(
    list,
    pairs.filter(([, value]) => value !== ""),
    ([name]) => name,
    ([name]) => {
      const pair = make("div");
      pair.append(make("dt", "", name), make("dd"));
      return pair;
    },
    (pair, [, value]) => setText(pair.lastChild, value),
  );
}

// -- Switches ------------------------------------------------------------------------------

function createSwitch() {
  const card = make("article", "card");
  const head = make("div", "head");
  head.append(make("h3", "name"), make("span", "badge"));
  card.append(head, make("p", "dim tree"), make("dl", "facts"), make("details"));
  const details = card.lastChild;
  const table = make("table");
  const header = make("tr");
  for (const [name, kind] of [["Outcome", ""], ["Frames", "number"], ["Per second", "number"]]) {
    const cell = make("th", kind, name);
    cell.scope = "col";
    header.append(cell);
  }
  table.createTHead().append(header);
  table.append(make("tbody"));
  details.append(make("summary", "", "What became of the frames"), table);
  return card;
}

function updateSwitch(card, each) {
  const [name, badge] = card.querySelectorAll(".name, .badge");
  setText(name, each.name);
  setText(badge, each.connected ? "connected" : `lost: ${each.reason}`);
  badge.className = `badge ${each.connected ? "good" : "bad"}`;
  const link = each.uplink;
  setText(
    card.querySelector(".tree"),
    link
      ? `Port ${link.port} leads up to ${link.parent}: ` +
          (link.works ? quantity(link.rate, "bit/s") : `down (${link.reason})`)
      : each.address,
  );
  facts(card.querySelector(".facts"), [
    ["slots in use", `${each.slots - each.free} of ${each.slots}`],
    ["ports for ranks", each.ports.length ? String(each.ports.length) : ""],
  ]);
  keep(
    card.querySelector("tbody"),
    Object.entries(each.outcomes),
    ([outcome]) => outcome,
    () => {
      const row = make("tr");
      row.append(make("td"), make("td", "number"), make("td", "number"));
      return row;
    },
    (row, [outcome, count]) => {
      setText(row.children[0], outcome);
      setText(row.children[1], String(count.frames));
      setText(row.children[2], quantity(count.rate));
    },
  );
}

// The switches by level, so that a tree's root stands above what leads up to it.
function showSwitches(switches) {
  const parents = new Map(switches.map((each) => [each.name, each.uplink ? each.uplink.parent : ""]));
  const depth = (name) => (parents.get(name) ? 1 + depth(parents.get(name)) : 0);
  const levels = [];
  for (const each of switches) (levels[depth(each.name)] ||= []).push(each);
  keep(
    byId("switches"),
    levels.map((of, at) => ({ at, of })),
    (level) => level.at,
    () => make("div", "cards"),
    (row, level) => keep(row, level.of, (each) => each.name, createSwitch, updateSwitch),
  );
}

// -- Jobs ----------------------------------------------------------------------------------

const charts = new Map();
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const room = (box) => ({ width: Math.max(box.clientWidth, 200), height: box.clientHeight });

function chart(box, series) {
  const axis = { stroke: styleOf("--dim"), grid: { stroke: styleOf("--line"), width: 1 }, size: 50, font: "11px system-ui" };
  const colours = [styleOf("--accent"), styleOf("--collecting")];
  return new uPlot(
    {
      ...room(box),
      cursor: { show: false },
      legend: { show: false },
      axes: [{ ...axis, size: 28, space: 70, values: (_, ticks) => ticks.map(time) }, { ...axis, space: 18, values: (_, ticks) => ticks.map((tick) => (tick < 1000 ? String(tick) : quantity(tick, "", 999.5))) }],
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
      series: [{}, ...series.map((label, at) => ({
        label, stroke: colours[at], width: 1.5, dash: at ? [6, 5] : undefined, points: { show: false },
      }))],
    },
    [[], ...series.map(() => [])],
    box,
  );
}

const OVERVIEW_FROM = 3; // jobs: fewer are seen at once

// What is said of a job's state in a word, and its colour.
const STATES = { running: "good", forming: "warn", failed: "bad", ended: "dim" };
const waits = (job) => job.state === "running" && job.waits_for !== "";
const stateOf = (job) => (waits(job) ? "waits" : job.state);
const colourOf = (job) => (waits(job) ? "warn" : STATES[job.state] || "");

function showOverview(jobs) {
  const many = jobs.length >= OVERVIEW_FROM;
  byId("overview").hidden = !many;
  if (byId("jobs").classList.contains("many") !== many) {
    byId("jobs").classList.toggle("many", many);
    fitCharts();
  }
  if (!many) return;
  keep(
    document.querySelector("#overview tbody"),
    jobs,
    (job) => job.id,
    (job) => {
      const row = make("tr");
      const name = make("th");
      name.scope = "row";
      const link = make("a", "", job.name);
      link.href = `#job-${job.id}`;
      name.append(link);
      row.append(name, make("td"), make("td", "number"), make("td", "number"), make("td", "number"), make("td"));
      return row;
    },
    (row, job) => {
      const cells = [
        stateOf(job), String(job.world_size), quantity(job.contributions), quantity(job.again), job.waits_for,
      ];
      cells.forEach((text, at) => setText(row.children[at + 1], text));
      row.children[1].className = colourOf(job);
    },
  );
}

function createJob(job) {
  const card = make("article", "card job");
  card.id = `job-${job.id}`;
  const head = make("div", "head");
  head.append(make("h3", "name"), make("span", "badge"));
  const left = make("div");
  left.append(make("h4", "", "Ranks"), make("ul", "ranks"), make("h4", "slots-title", "Slots"), make("div", "slots"));
  const right = make("div", "charts");
  for (const [kind, title] of [["rate", "Contributions per second"], ["bits", "bit/s up (solid) and down (dashed)"]]) {
    const part = make("div");
    const box = make("div", `chart ${kind}`);
    box.setAttribute("role", "img");
    part.append(make("h4", "", title), box);
    right.append(part);
  }
  const columns = make("div", "columns");
  columns.append(left, right);
  const details = make("details", "figures");
  const table = make("table");
  const header = make("tr");
  const names = ["Rank", "State", "Host", "Port", "Contributions/s", "Up", "Down", "Repeated", "Collectives"];
  for (const [at, name] of names.entries()) {
    const cell = make("th", at > 3 ? "number" : "", name);
    cell.scope = "col";
    header.append(cell);
  }
  table.createTHead().append(header);
  table.append(make("tbody"));
  const region = make("div", "scroll");
  region.tabIndex = 0;
  region.setAttribute("role", "group");
  region.setAttribute("aria-label", "Figures of each rank");
  region.append(table);
  details.append(make("summary", "", "Figures of each rank"), region);
  card.append(head, make("p", "waits"), make("dl", "facts"), columns, details);
  return card;
}

function updateJob(card, job) {
  const [name, badge] = card.querySelectorAll(".name, .badge");
  setText(name, job.name);
  setText(badge, stateOf(job));
  badge.className = `badge ${colourOf(job)}`;
  const reason = card.querySelector(".waits");
  setText(reason, job.waits_for);
  reason.hidden = !job.waits_for;
  facts(card.querySelector(".facts"), [
    ["ranks", String(job.world_size)],
    ["slots", String(job.slot_count)],
    ["contributions", `${quantity(job.contributions)}/s`],
    ["blocks not zero", job.density === null ? "" : `${(100 * job.density).toPrecision(3)} %`],
    ["repeated", `${quantity(job.again)}/s`],
  ]);
  const awaited = new Set(job.awaited);
  keep(
    card.querySelector(".ranks"),
    job.ranks,
    (rank) => rank.rank,
    () => make("li"),
    (item, rank) => {
      setText(item, String(rank.rank));
      const waited = awaited.has(rank.rank);
      item.className = rank.state + (waited ? " awaited" : "");
      const place = rank.port ? `, port ${rank.port}` : "";
      const label = `rank ${rank.rank}: ${rank.state}${waited ? ", awaited" : ""}${rank.host ? `, ${rank.host}` : ""}${place}`;
      if (item.title !== label) item.title = label;
      if (rank.state === "lost") setText(item, `${rank.rank} lost`);
    },
  );
  card.querySelector(".columns").hidden = job.state === "ended";
  card.querySelector(".slots-title").hidden = !job.slots.length;
  updateSlots(card.querySelector(".slots"), job);
  if (card.querySelector(".figures").open) updateFigures(card, job);
  updateCharts(card, job);
}

function updateSlots(box, job) {
  keep(
    box,
    job.slots,
    (each) => each.switch,
    () => {
      const part = make("div");
      const grid = make("div", "grid");
      grid.setAttribute("role", "img");
      part.append(make("p", "dim"), grid, make("p", "dim missing"));
      return part;
    },
    (part, each) => {
      const count = (mark) => [...each.marks].filter((one) => one === mark).length;
      const summary = each.hidden
        ? `${each.switch}: this switch does not show its slots.`
        : `${each.switch}: ${each.marks.length} slots, ${count("c") + count("r")} collecting, ${count("d")} complete, ${count(".")} free`;
      setText(part.children[0], summary);
      const grid = part.children[1];
      grid.setAttribute("aria-label", summary);
      while (grid.children.length > each.marks.length) grid.lastChild.remove();
      while (grid.children.length < each.marks.length) grid.append(make("i", "mark"));
      [...each.marks].forEach((mark, at) => {
        const wanted = `mark ${mark === "." ? "f" : mark}`;
        if (grid.children[at].className !== wanted) grid.children[at].className = wanted;
      });
      setText(
        part.children[2],
        each.waiting.length
          ? each.waiting.map((group) => {
              const one = group.slots.length === 1;
              return `${numbered("Slot", group.slots)} ${one ? "has" : "have"} ${group.heard} of ${each.children}, ` +
                `${one ? "lacks" : "lack"} ${numbered("rank", group.missing)}.`;
            }).join(" ")
          : "",
      );
    },
  );
}

function updateFigures(card, job) {
  keep(
    card.querySelector(".figures tbody"),
    job.ranks,
    (rank) => rank.rank,
    () => {
      const row = make("tr");
      for (let at = 0; at < 9; at += 1) row.append(make("td", at > 3 ? "number" : ""));
      return row;
    },
    (row, rank) => {
      const place = rank.port ? `${job.switches.length > 1 ? `${rank.switch} ` : ""}${rank.port}` : "";
      const cells = [
        String(rank.rank), rank.state, rank.host, place, quantity(rank.contributions),
        quantity(rank.up, "bit/s"), quantity(rank.down, "bit/s"), quantity(rank.retransmissions), quantity(rank.collectives),
      ];
      cells.forEach((text, at) => setText(row.children[at], text));
    },
  );
}

function updateCharts(card, job) {
  let own = charts.get(job.id);
  if (!own) {
    own = {
      card,
      rate: chart(card.querySelector(".rate"), ["contributions/s"]),
      bits: chart(card.querySelector(".bits"), ["up", "down"]),
    };
    charts.set(job.id, own);
  }
  const column = (at) => job.history.map((point) => point[at]);
  own.rate.setData([column(0), column(1)]);
  own.bits.setData([column(0), column(2), column(3)]);
  card.querySelector(".rate").setAttribute("aria-label", `Contributions per second, now ${quantity(job.contributions)}`);
  card.querySelector(".bits").setAttribute("aria-label", `Now ${quantity(job.up, "bit/s")} up and ${quantity(job.down, "bit/s")} down`);
}

// -- The whole page ------------------------------------------------------------------------

function show(view) {
  const lost = view.switches.filter((each) => !each.connected).length;
  setText(
    byId("summary"),
    `${view.switches.length} ${view.switches.length === 1 ? "switch" : "switches"}${lost ? ` (${lost} lost)` : ""}, ` +
      `${view.jobs.length} ${view.jobs.length === 1 ? "job" : "jobs"}, lease ${view.lease} s`,
  );
  showSwitches(view.switches);
  const order = { failed: 0, forming: 1, running: 2, ended: 3 };
  const place = (job) => (job.waits_for ? 0 : 4) + order[job.state];
  const jobs = [...view.jobs].sort((a, b) => place(a) - place(b) || b.created - a.created);
  showOverview(jobs);
  keep(byId("jobs"), jobs, (job) => job.id, createJob, updateJob);
  for (const [id, own] of charts) {
    if (!own.card.isConnected) {
      own.rate.destroy();
      own.bits.destroy();
      charts.delete(id);
    }
  }
  const body = document.querySelector("#events tbody");
  const events = [...view.events].reverse();
  keep(
    body,
    events,
    (event) => `${event.time} ${event.kind} ${event.text}`,
    (event) => {
      const row = make("tr");
      const bad = /lost|failed/.test(event.kind);
      row.append(make("td", "time", time(event.time)), make("td", bad ? "bad" : "", event.kind), make("td", "", event.job), make("td", "", event.text));
      return row;
    },
    () => {},
  );
  document.title = `p4reduce: ${view.jobs.filter((job) => job.waits_for).length ? "waiting" : `${view.jobs.length} jobs`}`;
}

function listen() {
  const source = new EventSource("events");
  source.onmessage = (message) => {
    setText(byId("state"), "");
    show(JSON.parse(message.data));
  };
  source.onerror = () => {
    setText(byId("state"), "The controller does not answer. Trying again.");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 1000);
  };
}

function fitCharts() {
  for (const own of charts.values()) {
    for (const kind of ["rate", "bits"]) own[kind].setSize(room(own.card.querySelector(`.${kind}`)));
  }
}

addEventListener("resize", fitCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const own of charts.values()) {
    own.rate.destroy();
    own.bits.destroy();
  }
  charts.clear();
});
listen();
