//! Compares measured times of a run ([`Timing`]) with its costs and minimum times.

use super::{Peaks, Summary, Total, float};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use transformer_lite::unstable::executor::Timing;
use transformer_lite::unstable::plan::{Arithmetic, NodeCost};

/// Measured time of some work, compared with its minimum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Measured {
    /// Measured time in seconds.
    pub seconds: f64,
    /// Share of the whole run's time.
    pub share: f64,
    /// Costs and minimum time; zero for nodes on the host.
    #[serde(flatten)]
    pub work: Summary,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Operations per second.
    pub flops_per_s: f64,
    /// Bytes per second divided by peak bandwidth.
    pub share_of_memory: f64,
    /// Operations per second divided by the peak of the arithmetic used.
    pub share_of_arithmetic: f64,
    /// Minimum time divided by measured time: 1 is as fast as the device allows.
    pub share_of_least: f64,
    /// True if one of these three shares exceeds 1: the probe was too low, or caches held the data.
    pub exceeds_probe: bool,
}

/// What stands in place of a share of a limit that exceeds 1.
const EXCEEDED: &str = "> probe";
/// Explains the mark of a share that exceeds the probe.
pub const EXCEEDED_HELP: &str = "> probe: faster than the device's limit, so the probe was too low (the machine was busy), \
                                 or caches held the data; `tlite devices --probe` measures again";

/// A share of a limit in percent, marked if it exceeds the limit.
pub fn limit_text(share: f64) -> String {
    if share > 1.0 {
        return EXCEEDED.to_owned();
    }
    format!("{:.1} %", 100.0 * share)
}

impl Measured {
    fn new(seconds: f64, whole: f64, total: Total, rate: f64, peaks: &Peaks) -> Self {
        let time = seconds.max(1e-9);
        let (bytes, flops) = (float(total.bytes()) / time, float(total.flops) / time);
        let shares = [bytes / peaks.bytes_per_s, flops / rate, total.least_s() / time];
        let [share_of_memory, share_of_arithmetic, share_of_least] = shares;
        Self {
            seconds,
            share: seconds / whole.max(1e-9),
            work: total.into(),
            bytes_per_s: bytes,
            flops_per_s: flops,
            share_of_memory,
            share_of_arithmetic,
            share_of_least,
            exceeds_probe: shares.iter().any(|s| *s > 1.0),
        }
    }
}

/// A command, or a node on the host.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Event {
    /// Display text of the specialised kernel; `None` on the host.
    pub kernel: Option<String>,
    /// Its node, by index into `lines`.
    pub line: usize,
    /// Measured time.
    pub nanoseconds: u64,
    /// Bytes that it reads.
    pub read_bytes: u64,
    /// Bytes that it writes.
    pub written_bytes: u64,
}

impl Event {
    /// The kernel's name without its specialisation, or `host`.
    pub fn name(&self) -> &str {
        let kernel = self.kernel.as_deref();
        kernel.map_or("host", |k| k.split('<').next().unwrap_or(k))
    }
}

/// A node with its time.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TimedLine {
    /// Its name in the planned graph.
    pub node: String,
    /// Its operator; `host` for a node on the host.
    pub op: String,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    /// Time and work.
    #[serde(flatten)]
    pub measured: Measured,
}

/// All nodes of one operator, or all commands of one kernel, with their time.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct TimedKind {
    /// The operator.
    pub op: String,
    /// Number of nodes.
    pub nodes: usize,
    /// The arithmetic that computes them.
    pub arithmetic: Arithmetic,
    /// Time and work.
    #[serde(flatten)]
    pub measured: Measured,
}

/// Time of all commands of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct KernelTime {
    /// Display text of the specialised kernel.
    pub kernel: String,
    /// Commands.
    pub dispatches: usize,
    /// Measured time in seconds.
    pub seconds: f64,
}

/// A profiled run.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Profile {
    /// `prefill 128`, `decode at 128`, `run`.
    pub name: String,
    /// All work together.
    pub whole: Measured,
    /// By operator, longest first.
    pub kinds: Vec<TimedKind>,
    /// By kernel, longest first.
    pub kernels: Vec<KernelTime>,
    /// By node, in order.
    pub lines: Vec<TimedLine>,
    /// Commands in the order in which they ran.
    pub events: Vec<Event>,
}

/// Operator name of nodes on the host.
const HOST: &str = "host";

/// Time and costs of some commands.
struct Sum {
    nanoseconds: u64,
    total: Total,
    nodes: usize,
    arithmetic: Arithmetic,
}

impl Sum {
    fn new(nodes: usize, total: Total, arithmetic: Arithmetic) -> Self {
        Self {
            nanoseconds: 0,
            total,
            nodes,
            arithmetic,
        }
    }
}

/// A node before its time is compared with that of the run.
struct Untimed {
    node: String,
    op: String,
    nodes: Vec<String>,
    sum: Sum,
}

fn seconds(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e9
}

/// The commands of a run, and the nodes that they compute.
fn commands(timings: &[Timing], costs: &[NodeCost], peaks: &Peaks) -> (Vec<Event>, Vec<Untimed>) {
    let mut of_step = HashMap::new();
    for (i, cost) in costs.iter().enumerate() {
        of_step.extend(cost.commands.iter().map(|c| (c.step, (i, cost, c))));
    }
    let mut line_of: HashMap<usize, usize> = HashMap::new();
    let mut lines: Vec<Untimed> = Vec::new();
    let mut events = Vec::with_capacity(timings.len());
    for t in timings {
        let found = t.step.and_then(|s| of_step.get(&s));
        let known = found.and_then(|(i, ..)| line_of.get(i).copied());
        let line = known.unwrap_or_else(|| {
            let (node, op, sum) = match found {
                Some((_, cost, _)) => {
                    let sum = Sum::new(1, Total::of(cost, peaks), cost.arithmetic);
                    (cost.name.clone(), cost.op.clone(), sum)
                }
                None => {
                    let sum = Sum::new(1, Total::default(), Arithmetic::F32);
                    (t.nodes.first().cloned().unwrap_or_default(), HOST.to_owned(), sum)
                }
            };
            let nodes = t.nodes.clone();
            lines.push(Untimed { node, op, nodes, sum });
            lines.len() - 1
        });
        line_of.extend(found.map(|(i, ..)| (*i, line)));
        if let Some(line) = lines.get_mut(line) {
            line.sum.nanoseconds += t.nanoseconds;
        }
        events.push(Event {
            kernel: t.kernel.clone(),
            line,
            nanoseconds: t.nanoseconds,
            read_bytes: found.map_or(0, |(.., c)| c.read),
            written_bytes: found.map_or(0, |(.., c)| c.written),
        });
    }
    (events, lines)
}

/// Time by kernel, longest first.
fn by_kernel(timings: &[Timing]) -> Vec<KernelTime> {
    let mut kernels: Vec<KernelTime> = Vec::new();
    for t in timings {
        let kernel = t.kernel.as_deref().unwrap_or(HOST);
        match kernels.iter_mut().find(|k| k.kernel == kernel) {
            Some(k) => {
                k.dispatches += 1;
                k.seconds += seconds(t.nanoseconds);
            }
            None => kernels.push(KernelTime {
                kernel: kernel.to_owned(),
                dispatches: 1,
                seconds: seconds(t.nanoseconds),
            }),
        }
    }
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    kernels
}

impl Profile {
    /// Builds a profile from the timings of a run and the costs of its plan. Times by a device's
    /// clock do not include launches, so minimum times here do not either.
    pub fn new(name: String, timings: &[Timing], costs: &[NodeCost], peaks: &Peaks) -> Self {
        let peaks = &Peaks {
            launch_s: 0.0,
            ..*peaks
        };
        let whole = seconds(timings.iter().map(|t| t.nanoseconds).sum());
        let (events, lines) = commands(timings, costs, peaks);
        let mut kinds: BTreeMap<&str, Sum> = BTreeMap::new();
        let mut together = Total::default();
        for Untimed { op, sum, .. } in &lines {
            let new = Sum::new(0, Total::default(), sum.arithmetic);
            let kind = kinds.entry(op).or_insert(new);
            kind.nanoseconds += sum.nanoseconds;
            kind.total.add(&sum.total);
            kind.nodes += 1;
            together.add(&sum.total);
        }
        let measured = |sum: &Sum| {
            let rate = peaks.rate(sum.arithmetic);
            Measured::new(seconds(sum.nanoseconds), whole, sum.total, rate, peaks)
        };
        let kind = |(op, sum): (&&str, &Sum)| TimedKind {
            op: (*op).to_owned(),
            nodes: sum.nodes,
            arithmetic: sum.arithmetic,
            measured: measured(sum),
        };
        let mut kinds: Vec<TimedKind> = kinds.iter().map(kind).collect();
        kinds.sort_by(|a, b| b.measured.seconds.total_cmp(&a.measured.seconds));
        // The fastest rate that any of them uses.
        let rates = lines.iter().map(|l| peaks.rate(l.sum.arithmetic));
        let most = rates.fold(peaks.rate(Arithmetic::F32), f64::max);
        let line = |l: Untimed| TimedLine {
            measured: measured(&l.sum),
            node: l.node,
            op: l.op,
            nodes: l.nodes,
        };
        Self {
            name,
            whole: Measured::new(whole, whole, together, most, peaks),
            kinds,
            kernels: by_kernel(timings),
            lines: lines.into_iter().map(line).collect(),
            events,
        }
    }

    /// Whether something was faster than the limits.
    pub fn exceeds_probe(&self) -> bool {
        let mut all = self
            .kinds
            .iter()
            .map(|k| &k.measured)
            .chain(self.lines.iter().map(|l| &l.measured));
        self.whole.exceeds_probe || all.any(|m| m.exceeds_probe)
    }

    /// The sum of all times.
    pub fn seconds(&self) -> f64 {
        self.whole.seconds
    }
}

/// Runs as trace events for Chrome and Perfetto: one process per run. Events follow one another
/// without gaps, since only the times of single commands are measured.
pub fn trace(device: &str, runs: &[Profile]) -> serde_json::Value {
    use serde_json::json;
    let mut events = Vec::new();
    for (pid, run) in (1..).zip(runs) {
        let name = |what: &str, name: &str| json!({"name": what, "ph": "M", "pid": pid, "tid": 1, "ts": 0, "args": {"name": name}});
        events.push(name("process_name", &run.name));
        events.push(name("thread_name", device));
        let mut start = 0u64;
        for event in &run.events {
            let line = run.lines.get(event.line);
            let micro = |ns: u64| float(ns) / 1e3;
            events.push(json!({
                "name": event.name(),
                "cat": line.map_or(HOST, |l| &l.op),
                "ph": "X",
                "pid": pid,
                "tid": 1,
                "ts": micro(start),
                "dur": micro(event.nanoseconds),
                "args": {
                    "node": line.map(|l| &l.node),
                    "nodes": line.map(|l| &l.nodes),
                    "kernel": event.kernel,
                    "read_bytes": event.read_bytes,
                    "written_bytes": event.written_bytes,
                    "node_flops": line.map(|l| l.measured.work.total.flops),
                    "bound": line.map(|l| l.measured.work.bound),
                },
            }));
            start += event.nanoseconds;
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::graph::NodeId;
    use transformer_lite::unstable::plan::CommandCost;

    const PEAKS: Peaks = Peaks {
        bytes_per_s: 1e9,
        f32_flops_per_s: 1e10,
        f16_flops_per_s: None,
        matrix_flops_per_s: None,
        int8_ops_per_s: None,
        int16_ops_per_s: None,
        launch_s: 0.0,
    };

    fn run() -> Profile {
        let cost = |name: &str, op: &str, steps: &[usize], read, flops| NodeCost {
            node: NodeId(name.bytes().map(usize::from).sum()),
            name: name.to_owned(),
            op: op.to_owned(),
            nodes: vec![format!("{name} of the model")],
            commands: steps
                .iter()
                .map(|step| CommandCost {
                    step: *step,
                    read,
                    written: 0,
                })
                .collect(),
            flops,
            arithmetic: Arithmetic::F32,
        };
        let costs = [
            cost("a", "MatMul", &[0, 1], 500, 4000),
            cost("b", "Add", &[2], 100, 10),
        ];
        let timing = |step: Option<usize>, kernel: Option<&str>, nanoseconds| Timing {
            step,
            kernel: kernel.map(str::to_owned),
            nodes: vec!["x".to_owned()],
            nanoseconds,
        };
        let timings = [
            timing(Some(0), Some("matmul<WG=64>"), 1000),
            timing(None, None, 700),
            timing(Some(1), Some("matmul<WG=64>"), 1000),
            timing(Some(2), Some("pointwise<WG=64>"), 300),
        ];
        Profile::new("run".to_owned(), &timings, &costs, &PEAKS)
    }

    #[test]
    fn times_meet_their_costs() {
        let run = run();
        let kinds: Vec<_> = run.kinds.iter().map(|k| (k.op.as_str(), k.nodes)).collect();
        assert_eq!(kinds, [("MatMul", 1), ("host", 1), ("Add", 1)]);
        let product = &run.kinds[0].measured;
        assert_eq!((product.seconds, product.work.total.bytes()), (2e-6, 1000));
        assert!((product.bytes_per_s - 5e8).abs() < 1.0 && (product.share_of_memory - 0.5).abs() < 1e-9);
        assert!((product.flops_per_s - 2e9).abs() < 1.0 && (product.share_of_arithmetic - 0.2).abs() < 1e-9);
        assert!((product.share_of_least - 0.5).abs() < 1e-9 && (product.share - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            (run.kernels[0].kernel.as_str(), run.kernels[0].dispatches),
            ("matmul<WG=64>", 2)
        );
        assert!((run.seconds() - 3e-6).abs() < 1e-15);
        assert_eq!(run.lines[0].nodes, ["x"]);
    }

    #[test]
    fn speeds_above_a_limit_are_marked() {
        let slow = run();
        assert!(!slow.exceeds_probe() && !slow.kinds[0].measured.exceeds_probe);
        let mut peaks = PEAKS;
        peaks.bytes_per_s = 1e8;
        let fast = Measured::new(
            1e-6,
            1e-6,
            Total {
                read_bytes: 1000,
                ..Total::default()
            },
            1e10,
            &peaks,
        );
        assert!(fast.exceeds_probe && limit_text(fast.share_of_memory) == EXCEEDED);
        assert_eq!(
            (limit_text(1.0), limit_text(0.5)),
            ("100.0 %".to_owned(), "50.0 %".to_owned())
        );
    }

    #[test]
    fn a_trace_has_its_events_in_order() {
        let json = trace("card", &[run(), run()]);
        let text = json.to_string();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = read["traceEvents"].as_array().unwrap();
        for pid in [1, 2] {
            let of: Vec<_> = events
                .iter()
                .filter(|e| e["pid"] == pid && e["ph"] == "X")
                .collect();
            assert_eq!(of.len(), 4);
            let mut end = 0.0;
            for e in &of {
                assert_eq!(e["ts"].as_f64().unwrap(), end);
                end += e["dur"].as_f64().unwrap();
            }
            assert_eq!(of[1]["name"], "host");
            assert_eq!(of[0]["args"]["read_bytes"], 500);
        }
    }
}
