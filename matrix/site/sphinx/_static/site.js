// The search of the start page, and "is mine among them?" on the page of a bug. What is asked stands in the address.
"use strict";
(() => {
  const root = document.documentElement.dataset.content_root || "";
  const WEIGHTS = { title: 4, keys: 2, words: 1 }; // what a word in this part of a page is worth
  const SATURATED = 2, LENGTH = 0.4; // of BM25, k1 and b
  const MOST = 50; // results shown
  const PREFIX = /^(?:\[?(?:rank|default)\s?\d+\]?:\s?|\(\w+ pid=[^)]*\)\s?|\d+:\s)/gm;
  // with what follows, as some messages have several lines
  const RAISED = /^(?:(?:[\w.]*(?:Error|Exception|Interrupt|Warning|Exit))\b.*|(?!\s|Traceback|File ).*\b(?:error|failed)\b.*)(?:\n(?!\s*File |Traceback|\[).*){0,3}/gim;
  const NUMBER = /^(?:https?:\S+\/(?:issues|pull|commit)\/|[\w./-]*#)([0-9a-f]+)\S*$/;

  const asked = () => new URLSearchParams(location.hash.slice(1));
  const ask = (values, push) => {
    const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
    if (query.toString() !== asked().toString())
      history[push ? "pushState" : "replaceState"](null, "", `#${query}`);
  };
  const element = (tag, text, attributes = {}) => Object.assign(document.createElement(tag), { textContent: text, ...attributes });

  // what the theme leaves to people without a mouse or without eyes
  for (const each of document.querySelectorAll("pre, .table-wrapper")) if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
  document.querySelector("aside.toc-drawer")?.setAttribute("aria-label", "On this page");

  // ---- the page of a bug

  const mine = document.querySelector("form.mine");
  if (mine) {
    const among = (name) => mine.dataset[name].split(" ").filter(Boolean);
    const select = (name, label, values) => {
      const field = element("select", "", { name });
      field.append(element("option", "any", { value: "" }), ...values.map((each) => element("option", each)));
      const told = element("label", label);
      told.append(field);
      mine.append(told);
      return field;
    };
    const fields = [
      select("deepspeed", "My DeepSpeed ", among("releases").reverse()),
      select("torch", "My torch ", among("torches").reverse()),
    ];
    const answer = element("output", "");
    mine.append(answer);
    const tell = () => {
      const [deepspeed, torch] = fields.map((each) => each.value);
      const has = among("affected").includes(deepspeed) && (!torch || among("with").includes(torch));
      const named = `DeepSpeed ${deepspeed}${torch ? ` with torch ${torch}` : ""}`;
      const needs = mine.dataset.needs && !(torch && mine.dataset.needs.startsWith("torch")) ? `, with ${mine.dataset.needs}` : "";
      answer.textContent = deepspeed ? (has ? `Yes${needs}: ${named} has this bug.` : `No: ${named} does not have this bug.`) : "";
      answer.className = has ? "has" : "";
    };
    const show = () => {
      for (const each of fields) each.value = asked().get(each.name) || "";
      tell();
    };
    mine.addEventListener("change", () => {
      ask(Object.fromEntries(fields.map((each) => [each.name, each.value])), true);
      tell();
    });
    addEventListener("popstate", show);
    mine.hidden = false;
    show();
  }

  // ---- the search

  const form = document.getElementById("find");
  if (!form) return;
  const field = Object.fromEntries(["query", "deepspeed", "torch", "area", "severity"].map((id) => [id, document.getElementById(id)]));
  const FACETS = ["area", "severity"];
  const count = document.getElementById("count");
  const list = document.getElementById("found");
  const guides = document.getElementById("guides");
  let known, vocabulary;

  // "accumulation", "accumulated" and "accumulates" are one word
  const stem = (word) =>
    /\d/.test(word) ? word : word.replace(/ies$/, "y").replace(/(?<=\w{3})(?:ations?|ing|ions?|ed|es|e|(?<![su])s)$/, "").replace(/([dgmnpt])\1$/, "$1");
  let same, nothing; // of `find`: stems of what people call the same thing, and words that tell nothing
  const CAMEL_CASE = /(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})/; // not LoRA, MoE, NaN
  const words = (text, names) =>
    (
      text
        .replace(/\b\d+\.\d[\w.+]*/g, " ") // a version; "my DeepSpeed" is for that
        .replace(/\b(?:zero|stage|z)[ =_-]*([0-3])(?:(?: ?\/ ?| (?:and|or|to) (?:zero)?-?)([0-3]))?\b/gi, " zero$1 zero$2 ")
        .replace(/\b(?:without zero|no zero|zero off|zero is off)\b/gi, " zero0 ")
        .replace(/\bout[ -]of[ -]memory\b/gi, " memory ")
        .match(/[\p{L}\p{N}]+/gu) || []
    )
      .flatMap((name) => [...new Set([...name.split(CAMEL_CASE), ...(names ? [name] : [])])].map((word) => word.toLowerCase()))
      .filter((word) => !nothing.has(word))
      .map((word) => same.get(word) || same.get(stem(word)) || stem(word));

  const load = () =>
    new Promise((done) => {
      if (known) return done();
      const script = element("script", "", { src: `${root}_static/known.js`, onload: done });
      document.head.append(script);
    }).then(() => {
      if (known) return;
      known = window.dsfixKnown;
      same = new Map(Object.entries(known.same).flatMap(([word, other]) => [word, stem(word)].map((each) => [each, stem(other)])));
      nothing = new Set(known.nothing);
      vocabulary = new Map(); // word -> page -> what it is worth there
      known.pages.forEach((page, place) => {
        page.length = 0;
        page.keys = [page.area, page.severity, page.keys].join(" ");
        for (const [part, weight] of Object.entries(WEIGHTS))
          for (const word of words(page[part] || "", true)) {
            if (!vocabulary.has(word)) vocabulary.set(word, new Map());
            const places = vocabulary.get(word);
            places.set(place, (places.get(place) || 0) + weight);
            page.length += weight;
          }
        for (const each of page.patterns || []) each.test = new RegExp(each.is);
      });
      known.length = known.pages.reduce((sum, page) => sum + page.length, 0) / known.pages.length;
    });

  // page -> score, by BM25; the word that is being typed stands for all that begin with it
  const scored = (text) => {
    const scores = new Map();
    const asked = new Set(words(text));
    const typed = /[\p{L}\p{N}]{3,}$/u.test(text) && text.length < 100 ? [...asked].pop() : null;
    for (const word of asked) {
      let having = vocabulary.get(word);
      if (!having && word === typed) {
        having = new Map();
        for (const [each, places] of vocabulary)
          if (each.startsWith(word)) places.forEach((worth, place) => having.set(place, Math.max(worth, having.get(place) || 0)));
      }
      if (!having) continue;
      const rare = Math.log(1 + (known.pages.length - having.size + 0.5) / (having.size + 0.5));
      having.forEach((worth, place) => {
        const long = 1 - LENGTH + (LENGTH * known.pages[place].length) / known.length;
        scores.set(place, (scores.get(place) || 0) + (rare * worth) / (worth + SATURATED * long));
      });
    }
    return scores;
  };

  const matching = (text) => {
    const plain = text.replace(PREFIX, "");
    const shown = ({ has, test }) => (!has.length || has.some((each) => plain.includes(each))) && test.test(plain);
    const found = []; // the most specific first: a cause before a message with several, a long pattern before a short one
    for (const page of known.pages) {
      const length = Math.max(0, ...(page.patterns || []).filter(shown).map((each) => each.is.length));
      if (length) found.push({ page, order: (page.rank || 0) - length / 1e6 });
    }
    return found.sort((a, b) => a.order - b.order).map((each) => each.page);
  };

  const search = (text, now) => {
    if (!text.trim()) return known.pages.filter((page) => page.severity);
    const first = text.length > 7 ? matching(text) : [];
    const several = text.trim().includes("\n");
    if (several && first.some((page) => fits(page, now) && !(page.rank > 1))) return first;
    const raised = several && text.replace(PREFIX, "").match(RAISED);
    const numbered = NUMBER.exec(text.trim());
    const scores = scored(numbered ? numbered[1] : raised ? raised.slice(-3).join("\n") : text.slice(-1000));
    const least = 0.4 * Math.max(0, ...scores.values());
    const others = [...scores].filter(([, score]) => score >= least && score > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    return [...new Set([...first, ...others.map(([place]) => known.pages[place])])];
  };

  const fits = (page, values, but) => {
    const release = known.releases.indexOf(values.deepspeed);
    return (
      (release < 0 || !page.releases || page.releases.some(([from, to]) => from <= release && release <= to)) &&
      (!values.torch || !page.torch || page.torch.includes(values.torch)) &&
      FACETS.every((name) => name === but || !values[name] || page[name] === values[name])
    );
  };

  const span = (page) =>
    (page.releases || [[0, known.releases.length - 1]])
      .map(([from, to]) => (from === to ? known.releases[from] : `${known.releases[from]} to ${known.releases[to]}`))
      .join(", ");

  const item = (page, mineToo) => {
    const told = [page.name, page.severity, page.area, `DeepSpeed ${span(page)}`].filter(Boolean).join(" · ");
    const entry = element("li", "");
    entry.append(element("a", page.title, { href: `${root}${page.url}${mineToo}` }), element("span", told));
    return entry;
  };

  const values = () => Object.fromEntries(Object.entries(field).map(([id, each]) => [id, each.value]));

  const show = () => {
    const now = values();
    const idle = !Object.values(now).some((each) => each.trim());
    const all = idle ? [] : search(now.query, now);
    const [sections, found] = [all.filter((page) => page.guide), all.filter((page) => !page.guide)];
    const fitting = found.filter((page) => fits(page, now));
    for (const name of FACETS) {
      const among = found.filter((page) => fits(page, now, name));
      for (const option of field[name].options)
        if (option.value)
          option.textContent = idle ? option.value : `${option.value} (${among.filter((page) => page[name] === option.value).length})`;
    }
    const link = new URLSearchParams(["deepspeed", "torch"].filter((id) => now[id]).map((id) => [id, now[id]])).toString();
    list.replaceChildren(...fitting.slice(0, MOST).map((page) => item(page, link && `#${link}`)));
    guides.replaceChildren(...sections.slice(0, 3).map((page) => element("a", page.title, { href: `${root}${page.url}` })));
    const more = fitting.length > MOST ? `, the first ${MOST} of them below` : "";
    const left = found.length > fitting.length ? `; ${found.length - fitting.length} more without the filters` : "";
    const none = `No known bug matches this${found.length ? " with these filters" : ": try fewer or different words"}`;
    count.textContent = idle ? "" : (fitting.length ? `${fitting.length} found${more}` : none) + left + ".";
  };

  const refresh = (push) => {
    ask(values(), push);
    return load().then(show);
  };

  const restore = () => {
    const query = asked();
    for (const [id, each] of Object.entries(field)) each.value = query.get(id) || "";
    if (query.toString() || known) load().then(show);
  };

  form.addEventListener("focusin", load);
  form.addEventListener("submit", (event) => event.preventDefault());
  field.query.addEventListener("input", () => refresh(false));
  form.addEventListener("change", (event) => event.target === field.query || refresh(true));
  field.query.addEventListener("keydown", (event) => {
    if ((event.key === "Enter" && !event.shiftKey) || event.key === "ArrowDown") {
      const first = list.querySelector("a");
      if (first && !field.query.value.includes("\n")) {
        event.preventDefault();
        first.focus();
      }
    }
  });
  addEventListener("popstate", restore);
  restore();
})();
