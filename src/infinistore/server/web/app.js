// Asks the admin port once a second and shows what it says. Changes nothing there.
import { bytes, count, duration, percent, rate } from "./format.js";
import { chart, pool, swatch, table } from "./draw.js";

const POINTS = 180; // three minutes
const PERIOD_MS = 1000, SLOW_TURNS = 3, TIMEOUT_MS = 5000;
const TOKEN = "infinistore.token";
const STATES = ["sealed", "reserved", "quarantined", "free", "unready"];
const NUMBERS = [
  ["keys", "keys", count], ["sessions", "sessions", count], ["hits", "hits", count],
  ["misses", "misses", count], ["seals", "values written", count], ["evictions", "evictions", count],
  ["received_bytes", "bytes in", bytes], ["sent_bytes", "bytes out", bytes],
];
const at = (id) => document.getElementById(id);
const history = []; // {in, out, hit} a turn, oldest first
let before = null;

class Refused extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const answer = await fetch(path, {
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  if (answer.status === 401 || answer.status === 403) throw new Refused((await answer.json()).error);
  if (answer.ok || answer.status === 503) return answer.json();
  throw new Error(`${path}: ${answer.status}`);
}

// The endpoints of this server. A probe without the right token learns the state only: so it is found
// out without a refusal.
async function endpoints() {
  const health = await ask("/health");
  if (!("version" in health)) throw new Refused("this is not the server's own token");
  return new Set(Object.keys((await ask("/openapi.json")).paths));
}

function put(id, text, raw) {
  const target = at(id);
  target.textContent = text;
  if (raw !== undefined) target.dataset.value = raw;
}

function share(hits, misses) {
  return hits + misses > 0 ? hits / (hits + misses) : null;
}

// What happened since the last look, a second; null after a restart.
function rates(now, then) {
  if (then === null || now.incarnation !== then.incarnation) return null;
  const seconds = now.uptime_s - then.uptime_s;
  if (seconds <= 0) return null;
  const grown = (name) => (now[name] ?? 0) - (then[name] ?? 0);
  return {
    in: grown("received_bytes") / seconds, out: grown("sent_bytes") / seconds,
    hit: share(grown("hits"), grown("misses")),
  };
}

function showNumbers(stats) {
  if (at("numbers").childElementCount === 0) {
    for (const [name, label] of NUMBERS) {
      const box = document.createElement("div");
      const value = document.createElement("b");
      value.id = `number-${name}`;
      box.append(value, label);
      at("numbers").append(box);
    }
  }
  for (const [name, , show] of NUMBERS) put(`number-${name}`, show(stats[name] ?? 0), stats[name] ?? 0);
}

function showPool(stats) {
  const unready = Math.max(0, stats.capacity_bytes - stats.populated_bytes);
  const held = {
    sealed: stats.sealed_bytes, reserved: stats.reserved_bytes, quarantined: stats.quarantined_bytes,
    free: Math.max(0, stats.free_bytes - unready), unready,
  };
  pool(at("pool"), STATES.map((name) => [name, held[name]]));
  const items = STATES.filter((name) => held[name] > 0 || name === "sealed" || name === "free").map((name) => {
    const item = document.createElement("li");
    const value = document.createElement("b");
    value.textContent = bytes(held[name]);
    value.dataset.value = held[name];
    value.id = `pool-${name}`;
    item.append(swatch(name), `${name} `, value);
    return item;
  });
  at("states").replaceChildren(...items);
}

function showRates(stats) {
  const now = rates(stats, before);
  before = stats;
  if (now) history.push(now);
  if (history.length > POINTS) history.shift();
  const line = (name) => history.map((point) => point[name]);
  chart(at("throughput"), [["in", line("in")], ["out", line("out")]], POINTS, { show: rate });
  chart(at("hitrate"), [["hit", line("hit")]], POINTS, { top: 1, show: percent });
  put("rate-in", now ? rate(now.in) : "-", now ? now.in : "");
  put("rate-out", now ? rate(now.out) : "-", now ? now.out : "");
  put("rate-hit", percent(now ? now.hit : null));
  put("rate-hit-all", percent(share(stats.hits, stats.misses)));
}

function showCauses(stats) {
  const causes = Object.entries(stats).filter(([name]) => name.startsWith("misses_"));
  const total = causes.reduce((sum, [, value]) => sum + value, 0);
  table(at("causes"), [
    ["cause", ([name]) => name.slice("misses_".length).replaceAll("_", " ")],
    ["misses", ([, value]) => count(value), true],
    ["share", ([, value]) => percent(total ? value / total : null), true],
  ], causes.length > 0 ? causes : null);
}

async function showTables(known) {
  const [spaces, hot, curve, nodes, tenants, log] = await Promise.all(
    ["/namespaces?limit=20", "/hottest?limit=20", "/whatif", "/cluster", "/tenants", "/log"].map((path) =>
      known.has(path.split("?")[0]) ? ask(path) : null),
  );
  table(at("namespaces"), [
    ["namespace", (row) => row.namespace || "(nameless)"], ["keys", (row) => count(row.keys), true],
    ["bytes", (row) => bytes(row.bytes), true],
    ["hit rate", (row) => percent(share(row.hits, row.misses)), true],
  ], spaces?.namespaces ?? null);
  table(at("hottest"), [
    ["namespace", (row) => row.namespace || "(nameless)"], ["key", (row) => row.key],
    ["keys", (row) => count(row.keys), true], ["read", (row) => rate(row.bytes_per_s), true],
  ], hot?.hottest ?? null);
  table(at("whatif"), [
    ["pool", (row) => bytes(row.pool_bytes), true],
    ["hit rate", (row) => percent(curve.asked ? row.hit_rate : null), true],
    ["", (row) => (row.pool_bytes === curve.capacity_bytes ? "now" : "")],
  ], curve?.points ?? null);
  table(at("nodes"), [
    ["node", (row) => row.name], ["address", (row) => row.address],
    ["state", (row) => (row.answers ? row.state : `${row.state}, does not answer`)],
    ["pool", (row) => bytes(row.capacity_bytes), true], ["serves", (row) => rate(row.bytes_per_s), true],
  ], nodes?.nodes?.length ? nodes.nodes : null);
  table(at("tenants"), [
    ["tenant", (row) => row.tenant], ["held", (row) => bytes(row.used_bytes), true],
    ["quota", (row) => (row.quota_bytes ? bytes(row.quota_bytes) : "none"), true],
    ["evicted for it", (row) => bytes(row.quota_evicted_bytes), true],
  ], tenants?.tenants?.length ? tenants.tenants : null);
  table(at("problems"), [
    ["when", (row) => new Date(row.time_s * 1000).toLocaleTimeString()], ["level", (row) => row.level],
    ["what", (row) => row.text],
  ], (log?.lines ?? []).toReversed());
}

function showState(health, stats) {
  const text = health.populating ? "populating" : health.status;
  put("state", text);
  at("state").className = `badge ${health.status !== "ok" ? "bad" : health.populating ? "warn" : "ok"}`;
  put("about", `version ${stats.version}, up ${duration(stats.uptime_s)}, pool ${bytes(stats.capacity_bytes)}, `
    + `${stats.workers} workers`);
}

async function turn(number, known) {
  const [health, stats] = await Promise.all([ask("/health"), ask("/stats")]);
  showState(health, stats);
  showNumbers(stats);
  showPool(stats);
  showRates(stats);
  showCauses(stats);
  if (number % SLOW_TURNS === 0) await showTables(known);
  at("ask").hidden = true;
  at("page").hidden = false;
  document.body.dataset.turns = number + 1;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function askForToken(why) {
  at("page").hidden = true;
  at("ask").hidden = false;
  put("state", "token wanted");
  put("refusal", sessionStorage.getItem(TOKEN) ? why : "");
  await new Promise((resolve) => {
    at("ask").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, at("token").value);
      at("token").value = "";
      resolve();
    };
  });
}

async function run() {
  let known = null;
  for (let number = 0; ; ) {
    try {
      known ??= await endpoints();
      if (!document.hidden || number === 0) {
        await turn(number, known);
        number += 1;
      }
      await pause(PERIOD_MS);
    } catch (error) {
      if (error instanceof Refused) {
        await askForToken(error.message);
      } else {
        put("state", "no answer");
        at("state").className = "badge bad";
        known = null;
        await pause(2 * PERIOD_MS);
      }
    }
  }
}

run();
