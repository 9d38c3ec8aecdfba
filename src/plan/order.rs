//! Orders the work of a plan, on host and device, so that data and symbols are available when
//! needed.

use super::compile::{Compiler, Item};
use crate::error::{Error, Result, Stage};
use crate::graph::{NodeId, ValueId};
use crate::shape::Symbol;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// The needed work of a plan in an executable order; `nodes` are topologically sorted. Host and
/// device take turns, each doing everything it can, so that there are few segments.
pub(super) fn order(c: &Compiler<'_>, nodes: &[NodeId]) -> Result<Vec<Item>> {
    let mut work = Scheduler::new(c, nodes);
    let mut calls: HashMap<NodeId, Vec<Item>> = HashMap::new();
    for (i, e) in c.collected.calls.iter().enumerate() {
        calls.entry(e.node).or_default().push(Item::Call(i));
    }
    let mut items = Vec::new();
    while let Some(task) = work.next() {
        match task {
            Task::Known(v) => items.push(Item::Known(v)),
            Task::Observe(v) => items.push(Item::Observe(v)),
            Task::Node(id) if c.host.contains_key(&id) => items.push(Item::Host(id)),
            Task::Node(id) => items.extend(calls.remove(&id).unwrap_or_default()),
        }
    }
    let Some(stuck) = work.stuck() else {
        return Ok(items);
    };
    let stuck = match stuck {
        Task::Node(id) => c.graph.node(id).map_or("", |n| n.name.as_str()),
        Task::Known(_) | Task::Observe(_) => "",
    };
    Err(Error::other(
        Stage::Plan,
        format!("node \"{stuck}\" depends on a size that is computed from its own result"),
    ))
}

/// Moves dispatches that only outputs of [`Options::on_request`](super::Options::on_request) need
/// to the end. Returns the number of the others.
pub(super) fn rest_last(c: &Compiler<'_>, nodes: &[NodeId], items: Vec<Item>) -> (Vec<Item>, usize) {
    let consumers = c.graph.consumers();
    let mut rest: BTreeSet<NodeId> = BTreeSet::new();
    for id in nodes.iter().rev() {
        let Some(node) = c.graph.node(*id).filter(|_| !c.host.contains_key(id)) else {
            continue;
        };
        let requested = |v: &ValueId| c.options.on_request.contains(&c.graph.value(*v).name.as_str());
        let read_by_rest = |v: &ValueId| {
            let mut readers = consumers.get(v.index()).into_iter().flatten();
            readers.all(|reader| rest.contains(reader))
        };
        let is_rest = |v: &ValueId| {
            let kept = c.graph.is_output(*v) && !requested(v) || c.is_state(*v);
            !kept && c.made.of(*v).next().is_none() && read_by_rest(v)
        };
        let is_read = |v: &ValueId| requested(v) || consumers.get(v.index()).is_some_and(|r| !r.is_empty());
        if node.outputs.iter().any(is_read) && node.outputs.iter().all(is_rest) {
            rest.insert(*id);
        }
    }
    let is_rest = |item: &Item| match item {
        Item::Call(i) => (c.collected.calls.get(*i)).is_some_and(|call| rest.contains(&call.node)),
        Item::Host(_) | Item::Observe(_) | Item::Known(_) => false,
    };
    let (last, mut all): (Vec<Item>, Vec<Item>) = items.into_iter().partition(is_rest);
    let main = all.len();
    all.extend(last);
    (all, main)
}

/// A part of the work: a node, or a value with its [`Item`].
#[derive(Clone, Copy, Debug)]
enum Task {
    Known(ValueId),
    Observe(ValueId),
    Node(NodeId),
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// The value exists.
    Value(ValueId),
    /// The observed value was read back.
    Seen(ValueId),
    /// The node has run.
    Node(NodeId),
}

/// The tasks that one side, host or device, can do, by round and index. A side goes over its tasks
/// in order; those that become ready behind it are for its next round.
type Ready = BinaryHeap<Reverse<(usize, usize)>>;

struct Scheduler<'a, 'b> {
    c: &'b Compiler<'a>,
    /// Values made by kernels whose elements define symbols.
    observed: BTreeSet<ValueId>,
    /// Known values, observed values, then nodes.
    tasks: Vec<Task>,
    /// How many events each task waits for.
    missing: Vec<usize>,
    waiting: HashMap<Event, Vec<usize>>,
    on_host: bool,
    host: Ready,
    device: Ready,
}

impl<'a, 'b> Scheduler<'a, 'b> {
    fn new(c: &'b Compiler<'a>, nodes: &[NodeId]) -> Self {
        let observed: BTreeSet<ValueId> = c
            .made
            .elements()
            .filter(|v| !c.known.contains(v) && c.graph.producer(*v).is_some() && !c.is_made_on_host(*v))
            .collect();
        let known = c.known.iter().map(|v| Task::Known(*v));
        let seen = observed.iter().map(|v| Task::Observe(*v));
        let needed = nodes.iter().filter(|id| c.is_needed(**id));
        let tasks: Vec<Task> = known
            .chain(seen)
            .chain(needed.map(|id| Task::Node(*id)))
            .collect();
        let mut out = Self {
            c,
            observed,
            missing: vec![0; tasks.len()],
            tasks: Vec::new(),
            waiting: HashMap::new(),
            on_host: true,
            host: Ready::new(),
            device: Ready::new(),
        };
        let readers = out.state_readers(nodes);
        for (i, task) in tasks.iter().enumerate() {
            let events = out.events(*task, &readers);
            out.missing[i] = events.len();
            for event in events {
                out.waiting.entry(event).or_default().push(i);
            }
            if out.missing[i] == 0 {
                out.side(*task).push(Reverse((0, i)));
            }
        }
        out.tasks = tasks;
        out
    }

    /// The needed nodes that read each state's old value.
    fn state_readers(&self, nodes: &[NodeId]) -> HashMap<ValueId, Vec<NodeId>> {
        let mut readers: HashMap<ValueId, Vec<NodeId>> = HashMap::new();
        for id in nodes.iter().filter(|id| self.c.is_needed(**id)) {
            let inputs = self.c.graph.node(*id).into_iter().flat_map(|n| n.inputs.iter());
            for v in inputs.flatten().filter(|v| self.c.is_state(**v)) {
                readers.entry(*v).or_default().push(*id);
            }
        }
        readers
    }

    /// What must happen before a task: the data and symbols that it needs are available, and
    /// nothing still reads what it overwrites.
    fn events(&self, task: Task, state_readers: &HashMap<ValueId, Vec<NodeId>>) -> Vec<Event> {
        let c = self.c;
        let id = match task {
            Task::Known(v) => {
                let symbols = c.symbols_of([v]);
                return symbols.iter().filter_map(|s| self.symbol(s)).collect();
            }
            Task::Observe(v) => return self.value(v).into_iter().collect(),
            Task::Node(id) => id,
        };
        let Some(node) = c.graph.node(id) else {
            return Vec::new();
        };
        let on_host = c.host.contains_key(&id);
        let inputs = node.inputs.iter().enumerate();
        let data = inputs.filter_map(|(i, v)| v.filter(|_| on_host || node.op.reads(i)));
        let data = data.filter(|v| !c.is_dims(*v)).filter_map(|v| self.value(v));
        let symbols = c.symbols_of(node.inputs.iter().flatten().chain(&node.outputs).copied());
        let own = |s: &Symbol| c.made.find(s).is_some_and(|m| node.outputs.contains(&m.value));
        let symbols = symbols.iter().filter(|s| !own(s)).filter_map(|s| self.symbol(s));
        // Readers of a state's old value run before the state is appended to.
        let ends = node.outputs.iter().filter(|v| c.graph.is_state_end(**v));
        let state = ends.filter_map(|v| c.graph.state_of(*v)).min();
        let state = state.and_then(|i| c.graph.states().get(i));
        let readers = state.and_then(|s| state_readers.get(&s.input));
        let readers = readers.into_iter().flatten().filter(|r| **r != id);
        data.chain(symbols)
            .chain(readers.map(|r| Event::Node(*r)))
            .collect()
    }

    /// The event after which a value exists; `None` if it exists before the run.
    fn value(&self, v: ValueId) -> Option<Event> {
        let exists = self.c.graph.producer(v).is_none() || self.c.is_const(v);
        (!exists).then_some(Event::Value(v))
    }

    /// The event after which a symbol has a value; `None` if it has one before the run.
    fn symbol(&self, s: &Symbol) -> Option<Event> {
        let m = self.c.made.find(s)?;
        if self.observed.contains(&m.value) {
            Some(Event::Seen(m.value))
        } else {
            self.value(m.value)
        }
    }

    fn is_on_host(&self, task: Task) -> bool {
        match task {
            Task::Known(_) | Task::Observe(_) => true,
            Task::Node(id) => self.c.host.contains_key(&id),
        }
    }

    fn side(&mut self, task: Task) -> &mut Ready {
        if self.is_on_host(task) {
            &mut self.host
        } else {
            &mut self.device
        }
    }

    /// The next task. `None` if no task is ready.
    fn next(&mut self) -> Option<Task> {
        let own = if self.on_host {
            &mut self.host
        } else {
            &mut self.device
        };
        let Reverse((round, at)) = match own.pop() {
            Some(first) => first,
            None => {
                self.on_host = !self.on_host;
                let other = if self.on_host {
                    &mut self.host
                } else {
                    &mut self.device
                };
                other.pop()?
            }
        };
        let task = *self.tasks.get(at)?;
        match task {
            Task::Known(v) => self.happened(Event::Value(v), round, at),
            Task::Observe(v) => self.happened(Event::Seen(v), round, at),
            Task::Node(id) => {
                self.happened(Event::Node(id), round, at);
                let c = self.c;
                for v in c.graph.node(id).into_iter().flat_map(|n| &n.outputs) {
                    self.happened(Event::Value(*v), round, at);
                }
            }
        }
        Some(task)
    }

    /// Readies the tasks that waited only for `event`, which the task `at` caused.
    fn happened(&mut self, event: Event, round: usize, at: usize) {
        for i in self.waiting.remove(&event).unwrap_or_default() {
            self.missing[i] -= 1;
            if self.missing[i] > 0 {
                continue;
            }
            let task = self.tasks[i];
            let again = self.is_on_host(task) == self.on_host;
            let round = if again { round + usize::from(i < at) } else { 0 };
            self.side(task).push(Reverse((round, i)));
        }
    }

    /// A task that cannot be done: the first node, if there is one.
    fn stuck(&self) -> Option<Task> {
        let left = self.tasks.iter().zip(&self.missing).filter(|(_, n)| **n > 0);
        let mut left: Vec<Task> = left.map(|(task, _)| *task).collect();
        let node = left.iter().position(|task| matches!(task, Task::Node(_)));
        left.drain(node.unwrap_or(0)..).next()
    }
}
