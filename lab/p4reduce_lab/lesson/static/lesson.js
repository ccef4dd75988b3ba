// SPDX-License-Identifier: Apache-2.0
// Shows a lesson, and sends what is clicked or typed as a command. All text goes in by textContent.
"use strict";

const byId = (id) => document.getElementById(id);
const token = document.querySelector("meta[name=token]").content;

function make(tag, text) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  return element;
}

function button(text, label, command) {
  const element = make("button", text);
  element.type = "button";
  element.setAttribute("aria-label", label);
  element.dataset.command = command;
  element.addEventListener("click", () => perform(command));
  return element;
}

async function perform(command) {
  const answer = await fetch("/do", { method: "POST", body: command, headers: { "X-Lesson": token } });
  show(await answer.json());
}

function show(view) {
  const lessons = byId("lessons");
  if (!lessons.children.length) {
    view.lessons.forEach((title, at) => {
      const option = make("option", `${at + 1}: ${title}`);
      option.value = String(at + 1);
      lessons.append(option);
    });
  }
  lessons.value = String(view.number);
  byId("step-title").textContent = view.title;
  byId("about").textContent = view.about;
  byId("text").textContent = view.text;
  const next = byId("next");
  next.hidden = !view.proposed;
  next.textContent = view.proposed;
  next.dataset.command = view.proposed;
  byId("frames").replaceChildren(
    ...view.frames.map((frame) => {
      const item = make("li");
      item.append(make("code", frame.line));
      for (const [text, verb] of [["Let go", "let"], ["Lose", "drop"], ["Copy", "dup"], ["Delay", "delay"]]) {
        item.append(button(text, `${text}: frame ${frame.number}`, `${verb} ${frame.number}`));
      }
      const details = make("details");
      details.append(make("summary", `Header of frame ${frame.number}`), make("pre", frame.details.join("\n")));
      item.append(details);
      return item;
    }),
  );
  if (!view.frames.length) byId("frames").append(make("li", "None."));
  byId("ranks").replaceChildren(
    ...view.ranks.map((rank) => {
      const item = make("li", `rank ${rank.number}: ${rank.state} `);
      if (rank.alive) {
        item.append(button("Timer runs out", `Timer of rank ${rank.number} runs out`, `repeat ${rank.number}`));
        item.append(button("Kill", `Kill rank ${rank.number}`, `kill ${rank.number}`));
      }
      return item;
    }),
  );
  byId("said").textContent = view.said.join("\n") || "Nothing so far.";
  byId("slots").textContent = view.slots.join("\n");
  byId("legend").textContent = view.legend.join("\n");
  byId("breakpoints").replaceChildren(
    ...view.breakpoints.map((each) => {
      const item = make("li");
      item.append(make("code", each.place), " ");
      item.append(button("Remove", `Remove breakpoint ${each.place}`, `unbreak ${each.number}`));
      return item;
    }),
  );
  byId("held").hidden = !view.held;
  if (view.held) {
    byId("where").textContent = `The switch holds frame ${view.held.number} ${view.held.where}.`;
    byId("values").textContent = view.held.values.join("\n");
    byId("go-on").replaceChildren(
      button("Step", "Step: to the next line, table or action", "step"),
      button("Continue", "Continue: to the next breakpoint or the end", "continue"),
    );
  }
}

byId("next").addEventListener("click", (event) => perform(event.currentTarget.dataset.command));
byId("lessons").addEventListener("change", (event) => perform(`lesson ${event.currentTarget.value}`));
byId("restart").addEventListener("click", () => perform(`lesson ${byId("lessons").value}`));
byId("stops").addEventListener("submit", (event) => {
  event.preventDefault();
  perform(`break ${byId("place").value}`);
  byId("place").value = "";
});
byId("typed").addEventListener("submit", (event) => {
  event.preventDefault();
  perform(byId("command").value);
  byId("command").value = "";
});
fetch("/view").then((answer) => answer.json()).then(show);
