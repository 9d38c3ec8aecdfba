/* Tokens of an answer: `t` text, `p` log probability, `a` alternatives [text, log probability, bytes?], `b` bytes where the
   text does not hold them (a part of a character), `r` 1 for reasoning. */
const encoder = new TextEncoder(), strict = new TextDecoder("utf-8", { fatal: true });

const differs = (text, bytes) => {
  if (!Array.isArray(bytes)) return false;
  const own = encoder.encode(text);
  return own.length !== bytes.length || own.some((b, i) => b !== bytes[i]);
};

/** A token as the page keeps it, from an entry of `logprobs.content`. */
export function kept(entry, reasoning) {
  const out = { t: entry.token, p: round(entry.logprob), a: (entry.top_logprobs ?? []).map((a) => differs(a.token, a.bytes) ? [a.token, round(a.logprob), a.bytes] : [a.token, round(a.logprob)]) };
  if (differs(entry.token, entry.bytes)) out.b = entry.bytes;
  if (reasoning) out.r = 1;
  return out;
}

const round = (p) => Math.max(-9999, Math.round(p * 1e4) / 1e4);

/** The text of tokens before index `at`, followed by an alternative; null if it ends within a character. */
export function textUpTo(tokens, at, alternative) {
  const parts = tokens.slice(0, at).filter((t) => !t.r).map((t) => t.b ?? encoder.encode(t.t));
  if (alternative) parts.push(alternative[2] ?? encoder.encode(alternative[0]));
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let from = 0;
  for (const p of parts) { all.set(p, from); from += p.length; }
  try { return strict.decode(all); } catch { return null; }
}

/** How sure the model was, as the end of a class name: 5 is sure. */
export const level = (p) => { const v = Math.exp(p); return v >= .9 ? 5 : v >= .7 ? 4 : v >= .5 ? 3 : v >= .3 ? 2 : v >= .1 ? 1 : 0; };

export const chance = (p) => { const v = 100 * Math.exp(p); return v < .01 ? "< 0.01 %" : `${v.toFixed(v < 1 ? 2 : 1)} %`; };

/** A token with its blanks visible. */
export const visible = (t) => t === "" ? "(end)" : t.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5").replace(/^ | $/g, "\u2423");
