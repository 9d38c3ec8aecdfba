/**
 * Compiles an expression to a function from symbols (a Map) to a number. It knows + - * / % ** floor ceil min max mod.
 * `/` rounds down, except inside of floor and ceil.
 */
export function compile(source) {
  const tokens = source.match(/\d+|[A-Za-z_]\w*|\/\/|\*\*|[-+*\/%(),]/g) || [];
  let at = 0;
  const take = (t) => tokens[at] === t && ++at;
  const bad = () => { throw new Error("not an expression: " + source); };
  const need = (t) => take(t) || bad();
  function sum(exact) {
    let a = product(exact);
    for (;;) {
      const x = a;
      if (take("+")) { const y = product(exact); a = (v) => x(v) + y(v); }
      else if (take("-")) { const y = product(exact); a = (v) => x(v) - y(v); }
      else return a;
    }
  }
  function product(exact) {
    let a = power(exact);
    for (;;) {
      const x = a;
      if (take("*")) { const y = power(exact); a = (v) => x(v) * y(v); }
      else if (take("/") || take("//")) { const y = power(exact); a = exact ? (v) => x(v) / y(v) : (v) => Math.floor(x(v) / y(v)); }
      else if (take("%")) { const y = power(exact); a = (v) => modulo(x(v), y(v)); }
      else return a;
    }
  }
  function power(exact) {
    if (take("-")) { const x = power(exact); return (v) => -x(v); }
    const x = atom(exact);
    if (take("**")) { const y = atom(exact); return (v) => x(v) ** y(v); }
    return x;
  }
  function atom(exact) {
    const t = tokens[at++];
    if (t === undefined) bad();
    if (t === "(") { const x = sum(exact); need(")"); return x; }
    if (/^\d/.test(t)) { const n = Number(t); return () => n; }
    if (!/^\w/.test(t)) bad();
    if (!take("(")) return (v) => { if (v.has(t)) return v.get(t); throw new Error("no value for " + t); };
    const inner = exact || t === "floor" || t === "ceil";
    const args = [sum(inner)];
    while (take(",")) args.push(sum(inner));
    need(")");
    const all = (v) => args.map((f) => f(v));
    switch (t) {
      case "floor": return (v) => Math.floor(args[0](v));
      case "ceil": return (v) => Math.ceil(args[0](v));
      case "min": return (v) => Math.min(...all(v));
      case "max": return (v) => Math.max(...all(v));
      case "mod": return (v) => modulo(...all(v));
      default: return bad();
    }
  }
  const whole = sum(false);
  if (at !== tokens.length) bad();
  return whole;
}

const modulo = (a, b) => a - b * Math.floor(a / b);
const compiled = new Map();

/** The value of an expression, or null if a symbol has none. */
export function value(source, env) {
  try {
    if (!compiled.has(source)) compiled.set(source, compile(source));
    const v = compiled.get(source)(env);
    return Number.isFinite(v) ? v : null;
  } catch { return null; }
}
