//! Roofline: lower bounds on run time from the costs of plans ([`NodeCost`]) and the
//! measured peaks of a device ([`Peaks`]).
//!
//! A node takes at least the time of its bytes at peak bandwidth or of its arithmetic at peak rate,
//! whichever is longer, plus a launch per command. Nodes run one after another. Bytes count even if
//! a cache keeps them from one node to the next, so a model that fits in a cache may be faster than
//! this bound.

pub mod measured;

use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use transformer_lite::unstable::graph::NodeId;
use transformer_lite::unstable::plan::NodeCost;
pub use transformer_lite::unstable::probe::Peaks;

/// The limiting factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Memory bandwidth.
    Memory,
    /// Arithmetic throughput.
    Arithmetic,
    /// Launch overhead.
    Launches,
}

impl Bound {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
            Self::Launches => "launches",
        }
    }
}

/// Cost of some work, and its minimum time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Total {
    /// Commands; each is one launch.
    pub launches: u64,
    /// Bytes that commands read.
    pub read_bytes: u64,
    /// Bytes that commands write.
    pub written_bytes: u64,
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    /// Time of the bytes, for nodes where it exceeds that of the arithmetic.
    pub memory_s: f64,
    /// Time of the arithmetic, for nodes where it exceeds that of the bytes.
    pub arithmetic_s: f64,
    /// Time of the launches.
    pub launch_s: f64,
}

#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
fn float(n: u64) -> f64 {
    n as f64
}

impl Total {
    /// The total of one node.
    pub fn of(cost: &NodeCost, peaks: &Peaks) -> Self {
        let mut total = Self {
            launches: cost.commands.len() as u64,
            read_bytes: cost.read(),
            written_bytes: cost.written(),
            flops: cost.flops,
            ..Self::default()
        };
        let memory = float(total.bytes()) / peaks.bytes_per_s;
        let arithmetic = float(total.flops) / peaks.rate(cost.arithmetic);
        if arithmetic > memory {
            total.arithmetic_s = arithmetic;
        } else {
            total.memory_s = memory;
        }
        total.launch_s = float(total.launches) * peaks.launch_s;
        total
    }

    /// Adds work that runs afterwards.
    pub fn add(&mut self, o: &Self) {
        self.launches += o.launches;
        self.read_bytes = self.read_bytes.saturating_add(o.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(o.written_bytes);
        self.flops = self.flops.saturating_add(o.flops);
        self.memory_s += o.memory_s;
        self.arithmetic_s += o.arithmetic_s;
        self.launch_s += o.launch_s;
    }

    /// Bytes read plus bytes written.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    /// Minimum time in seconds.
    pub fn least_s(&self) -> f64 {
        self.memory_s + self.arithmetic_s + self.launch_s
    }

    /// Arithmetic intensity: operations per byte.
    pub fn intensity(&self) -> f64 {
        float(self.flops) / float(self.bytes().max(1))
    }

    /// The factor that takes most of the minimum time.
    pub fn bound(&self) -> Bound {
        if self.launch_s > self.memory_s.max(self.arithmetic_s) {
            Bound::Launches
        } else if self.arithmetic_s > self.memory_s {
            Bound::Arithmetic
        } else {
            Bound::Memory
        }
    }
}

/// [`Total`] with derived values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Summary {
    /// The work.
    #[serde(flatten)]
    pub total: Total,
    /// Minimum time in seconds.
    pub least_s: f64,
    /// The factor that takes most of it.
    pub bound: Bound,
}

impl From<Total> for Summary {
    fn from(total: Total) -> Self {
        Self {
            least_s: total.least_s(),
            bound: total.bound(),
            total,
        }
    }
}

/// All nodes of one operator.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Kind {
    /// The operator.
    pub op: String,
    /// Number of nodes.
    pub nodes: usize,
    /// Their work.
    #[serde(flatten)]
    pub work: Summary,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Line {
    /// Its name in the planned graph.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    /// Its work in all runs together.
    #[serde(flatten)]
    pub work: Summary,
}

/// Work of a model: for a decoder, some tokens after a given context; for other models, one run.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Work {
    /// `prefill 128`, `decode at 1024`, `run`.
    pub name: String,
    /// Tokens that a decoder processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Upper bound on tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_tokens_per_s: Option<f64>,
    /// Number of plan runs.
    pub runs: usize,
    /// Total number of launches.
    pub launches: u64,
    /// All nodes together.
    pub whole: Summary,
    /// By operator, longest first.
    pub kinds: Vec<Kind>,
    /// By node, in plan order.
    pub lines: Vec<Line>,
}

impl Work {
    /// Summarises the costs of consecutive runs, possibly of several plans of one graph.
    pub fn new(name: String, tokens: Option<usize>, runs: &[Vec<NodeCost>], peaks: &Peaks) -> Self {
        let mut whole = Total::default();
        let mut nodes: Vec<(&NodeCost, Total)> = Vec::new();
        let mut index: HashMap<NodeId, usize> = HashMap::new();
        for cost in runs.iter().flatten() {
            let total = Total::of(cost, peaks);
            whole.add(&total);
            let known = index.get(&cost.node).and_then(|i| nodes.get_mut(*i));
            if let Some((_, sum)) = known {
                sum.add(&total);
            } else {
                index.insert(cost.node, nodes.len());
                nodes.push((cost, total));
            }
        }
        let mut kinds: BTreeMap<&str, (usize, Total)> = BTreeMap::new();
        for (cost, total) in &nodes {
            let (count, sum) = kinds.entry(&cost.op).or_default();
            *count += 1;
            sum.add(total);
        }
        let kinds = kinds.into_iter().map(|(op, (nodes, total))| Kind {
            op: op.to_owned(),
            nodes,
            work: total.into(),
        });
        let mut kinds: Vec<Kind> = kinds.collect();
        kinds.sort_by(|a, b| b.work.least_s.total_cmp(&a.work.least_s));
        let lines = nodes.into_iter().map(|(cost, total)| Line {
            node: cost.name.clone(),
            op: cost.op.clone(),
            nodes: cost.nodes.clone(),
            work: total.into(),
        });
        Self {
            name,
            tokens,
            most_tokens_per_s: most(tokens, &whole),
            runs: runs.len(),
            launches: whole.launches,
            lines: lines.collect(),
            whole: whole.into(),
            kinds,
        }
    }

    /// The same work in a given number of launches, as counted. Their time is divided equally among
    /// the commands.
    #[must_use]
    pub fn in_launches(mut self, launches: u64) -> Self {
        let part = float(launches) / float(self.whole.total.launches.max(1));
        let scaled = |work: &mut Summary| {
            work.total.launch_s *= part;
            *work = work.total.into();
        };
        scaled(&mut self.whole);
        self.kinds.iter_mut().for_each(|k| scaled(&mut k.work));
        self.lines.iter_mut().for_each(|l| scaled(&mut l.work));
        self.kinds
            .sort_by(|a, b| b.work.least_s.total_cmp(&a.work.least_s));
        self.launches = launches;
        self.most_tokens_per_s = most(self.tokens, &self.whole.total);
        self
    }
}

/// Upper bound on tokens per second.
fn most(tokens: Option<usize>, whole: &Total) -> Option<f64> {
    tokens.map(|n| float(n as u64) / whole.least_s().max(1e-12))
}

#[cfg(test)]
mod tests {
    use super::*;
    use transformer_lite::unstable::plan::Arithmetic;
    use transformer_lite::unstable::plan::CommandCost;

    const PEAKS: Peaks = Peaks {
        bytes_per_s: 1e9,
        f32_flops_per_s: 1e10,
        f16_flops_per_s: Some(2e10),
        matrix_flops_per_s: Some(1e12),
        int8_ops_per_s: None,
        int16_ops_per_s: None,
        launch_s: 1e-6,
    };

    fn cost(name: &str, op: &str, bytes: u64, flops: u64, commands: usize) -> NodeCost {
        let mut cost = NodeCost {
            node: NodeId(name.bytes().map(usize::from).sum()),
            name: name.to_owned(),
            op: op.to_owned(),
            nodes: Vec::new(),
            commands: vec![
                CommandCost {
                    step: 0,
                    read: 0,
                    written: 0
                };
                commands
            ],
            flops,
            arithmetic: Arithmetic::F32,
        };
        cost.commands[0].read = bytes;
        cost
    }

    #[test]
    fn the_longer_of_memory_and_arithmetic_counts() {
        // 1 ms of bytes against 0.1 ms of arithmetic, and the other way round.
        let memory = Total::of(&cost("a", "MatMul", 1_000_000, 1_000_000, 2), &PEAKS);
        assert_eq!((memory.memory_s, memory.arithmetic_s), (1e-3, 0.0));
        assert!((memory.least_s() - 1.002e-3).abs() < 1e-12, "{memory:?}");
        assert_eq!(memory.bound(), Bound::Memory);
        let product = cost("b", "MatMul", 1000, 10_000_000, 1);
        let arithmetic = Total::of(&product, &PEAKS);
        assert_eq!((arithmetic.memory_s, arithmetic.arithmetic_s), (0.0, 1e-3));
        assert_eq!(arithmetic.bound(), Bound::Arithmetic);
        let units = NodeCost {
            arithmetic: Arithmetic::TensorCores,
            ..product
        };
        assert_eq!(Total::of(&units, &PEAKS).arithmetic_s, 1e-5);
        let halves = NodeCost {
            arithmetic: Arithmetic::F16,
            ..units.clone()
        };
        assert_eq!(Total::of(&halves, &PEAKS).arithmetic_s, 5e-4);
        let unknown = Peaks {
            f16_flops_per_s: None,
            ..PEAKS
        };
        assert_eq!(Total::of(&halves, &unknown).arithmetic_s, 1e-3);
        assert_eq!(
            Total::of(&cost("c", "Add", 10, 10, 1), &PEAKS).bound(),
            Bound::Launches
        );
    }

    #[test]
    fn runs_are_added_by_node_and_nodes_by_operator() {
        let run = || {
            vec![
                cost("a", "MatMul", 1000, 0, 1),
                cost("b", "Add", 10, 5, 1),
                cost("c", "MatMul", 500, 0, 2),
            ]
        };
        let work = Work::new("prefill 8".to_owned(), Some(8), &[run(), run()], &PEAKS);
        let lines: Vec<_> = work
            .lines
            .iter()
            .map(|l| (l.node.as_str(), l.work.total.launches))
            .collect();
        assert_eq!(lines, [("a", 2), ("b", 2), ("c", 4)]);
        let kinds: Vec<_> = work
            .kinds
            .iter()
            .map(|k| (k.op.as_str(), k.nodes, k.work.total.bytes()))
            .collect();
        assert_eq!(kinds, [("MatMul", 2, 3000), ("Add", 1, 20)]);
        assert_eq!(
            (work.whole.total.bytes(), work.whole.total.flops, work.runs),
            (3020, 10, 2)
        );
        let least = 3020e-9 + 8e-6;
        assert!((work.whole.least_s - least).abs() < 1e-12);
        assert!((work.most_tokens_per_s.unwrap() - 8.0 / least).abs() < 1e-3);
        let json = serde_json::to_value(&work).unwrap();
        assert_eq!(json["kinds"][0]["bound"], "launches");
        assert_eq!(json["lines"][2]["launches"], 4);

        // Eight commands, counted as two launches.
        assert_eq!((work.launches, json["launches"].as_u64()), (8, Some(8)));
        let work = work.in_launches(2);
        assert_eq!((work.launches, work.whole.total.launches), (2, 8));
        let least = 3020e-9 + 2e-6;
        assert!((work.whole.least_s - least).abs() < 1e-12);
        assert!((work.most_tokens_per_s.unwrap() - 8.0 / least).abs() < 1e-3);
        let parts: f64 = work.lines.iter().map(|l| l.work.least_s).sum();
        assert!((parts - least).abs() < 1e-12, "{parts}");
        assert_eq!(work.kinds[0].work.bound, Bound::Memory);
    }
}
