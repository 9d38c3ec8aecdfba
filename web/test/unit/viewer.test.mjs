import assert from "node:assert/strict";
import { test } from "node:test";
import { data } from "../mock.mjs";
import { compile, value } from "../../src/viewer/expr.js";
import { kindOf } from "../../src/viewer/index.js";
import { weightsText } from "../../src/viewer/inspect.js";
import { graphOf, layout } from "../../src/viewer/layout.js";
import { environment, numbered, place, plansOf } from "../../src/viewer/plan.js";
import { layersOf, nameParts } from "../../src/viewer/quantize.js";
import { arithmeticOf, axis, meets, meetsCircle } from "../../src/viewer/roofline.js";
import { ticks } from "../../src/viewer/timeline.js";
import { parameters, percent, quantity, size } from "../../src/shared/num.js";

const at = (source, values = {}) => compile(source)(new Map(Object.entries(values)));

test("expressions_follow_precedence_and_round_down", () => {
  assert.equal(at("2 + 3 * 4"), 14);
  assert.equal(at("7 / 2 - -1"), 4);
  assert.equal(at("ceil(n / 2)", { n: 5 }), 3);
  assert.equal(at("2 ** 3 % 5"), 3);
  assert.equal(at("max(1, min(a, 9)) * 64", { a: 12 }), 576);
  assert.equal(at("mod(-1, 4)"), 3);
  assert.equal(at("4 * (past + 1) * 192", { past: 10 }), 8448);
});

test("bad_expressions_and_unknown_symbols_have_no_value", () => {
  for (const source of ["", "1 +", "f(2)", "alert(1)", "(1"]) assert.equal(value(source, new Map()), null, source);
  assert.equal(value("n", new Map()), null);
});

for (const name of ["inspect-llm", "inspect-cnn"]) {
  test(`placement_at_the_bounds_of_${name}_is_that_of_the_report`, () => {
    const report = data(name), values = new Map(report.symbols.map((s) => [s.name, s.upper ?? 1]));
    for (const plan of plansOf(report)) {
      const placed = place(plan, environment(plan, values), report.device.view_align);
      assert.equal(placed.arena, plan.arena_bytes, plan.name);
      assert.equal(placed.most, plan.arena_lower_bound_bytes, plan.name);
      plan.tensors.forEach((t, i) => assert.equal(placed.offset[i], t.offset, t.name));
    }
  });
}

test("shorter_lengths_need_less_memory_and_padding_applies", () => {
  const report = data("inspect-llm"), [prefill, decode] = plansOf(report);
  const placed = (plan, n) => place(plan, environment(plan, new Map([["batch_size", 1], ["past_sequence_length", n], ["sequence_length", n]])), 64).arena;
  assert.ok(placed(prefill, 16) < placed(prefill, 128));
  const env = environment(decode, new Map([["past_sequence_length", 100], ["sequence_length", 5]]));
  assert.equal(env.get("sequence_length"), 1);
  assert.equal(env.get("past_sequence_length"), 127);
});

test("graph_levels_lie_below_what_they_read", () => {
  const report = data("inspect-cnn"), m = graphOf(report, "operators", (r) => r.class === "shape");
  const { list, links, width, height } = layout(m, (t) => 7 * t.length);
  assert.equal(list.filter((n) => n.v?.kind === "op").length, report.operators.length);
  for (const e of links) if (e.a.order < e.b.order) assert.ok(e.a.level < e.b.level);
  assert.ok(width > 0 && height > 0 && list.every((n) => Number.isFinite(n.x)));
});

test("repeated_layers_fold", () => {
  const report = data("inspect-llm"), m = graphOf(report, "operators", () => false);
  assert.equal(m.groups.size, 30);
  assert.equal(m.folded.size, 29);
  assert.ok(layout(m, () => 60).list.length < 200);
});

test("numbers_in_names_are_found", () => {
  assert.deepEqual(numbered("/model/layers.12/mlp/MatMul"), ["/model/layers.", "12"]);
  assert.equal(numbered("conv2_fwd"), null);
  assert.deepEqual(nameParts("model.layers.12.mlp.up_proj.weight"), ["model.layers.", 12, "mlp.up_proj"]);
  assert.deepEqual(nameParts("/h.3/attn/MatMul"), ["/h.", 3, "attn/MatMul"]);
  for (const name of ["lm_head.weight", "onnx::MatMul_439", "x2y.weight", ""]) assert.equal(nameParts(name), null, name);
  const layers = layersOf(data("quantize").weights);
  assert.equal(layers.numbers.length, 30);
  assert.equal(layers.kinds.length, 7);
  assert.equal(layers.others.length, 1);
});

test("arithmetic_is_inferred_from_the_share_of_its_peak", () => {
  const { peaks, runs } = data("profile"), of = (op) => arithmeticOf(runs[0].kinds.find((k) => k.op === op), peaks).name;
  assert.equal(of("QuantizedMatMul"), "int16");
  assert.equal(of("Attention"), "f32");
  assert.equal(arithmeticOf({ arithmetic: "tensor cores", flops: 1 }, peaks).style, "tensor-cores");
});

test("axes_hold_their_values_between_powers_of_ten", () => {
  const a = axis([.3, 40], 0, 300);
  assert.deepEqual([a.low, a.high, a.at(.1), a.at(1), a.at(100), a.at(1e9)], [-1, 2, 0, 100, 300, 300]);
  assert.equal(a.powers.length, 4);
  assert.equal(axis([], 0, 1).powers.length, 2);
  assert.deepEqual(ticks(1000), [0, 500, 1000]);
});

test("names_keep_clear_of_dots_and_of_each_other", () => {
  const area = (left, top) => ({ left, top, width: 40, height: 13 });
  assert.ok(meets(area(100, 100), area(130, 105)) && !meets(area(100, 100), area(141, 100)));
  assert.ok(meetsCircle(area(100, 100), 90, 106, 11) && !meetsCircle(area(100, 100), 90, 106, 9));
});

test("kinds_of_reports_are_recognized", () => {
  for (const [name, kind] of [["inspect-llm", "inspect"], ["inspect-cnn", "inspect"], ["profile", "profile"], ["roofline", "roofline"], ["quantize", "quantize"], ["int8", "int8"]]) assert.equal(kindOf(data(name)), kind);
  assert.equal(kindOf(null), null);
  assert.equal(kindOf({}), null);
});

test("numbers_have_units", () => {
  assert.equal(size(98_346_752), "98.3 MB");
  assert.equal(size(12), "12 B");
  assert.equal(quantity(18_087_258_010, "B/s"), "18.1 GB/s");
  assert.equal(quantity(1.9062e-6, "s"), "1.91 \u00b5s");
  assert.equal(quantity(999.6, ""), "1.00 k");
  assert.equal(parameters(134_515_040), "134.5 M");
  assert.equal(percent(1, 20), "5.0 %");
  assert.equal(weightsText(data("inspect-llm").model.summary), "4-bit E0M4 in groups of 32, 5.00 bits with scales; embedding and head 8-bit E0M8 in groups of 32");
});
