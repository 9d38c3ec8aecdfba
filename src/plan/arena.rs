//! Arena contents: lifetimes, views, in-place results, and the resulting offsets.

use super::compile::{Compiler, Item};
use super::memory::{self, Pools, Slot};
use super::{MemoryReport, Open, Shared, Storage, Tensor, dim_error};
use crate::backend::kernel::{Role, Ty};
use crate::error::{Error, Result, Stage};
use crate::graph::ValueId;
use crate::lower::{Dispatch, Location, Operand};
use crate::num;
use crate::shape::{Bindings, Dim, DimError};
use crate::tensor::DType;
use std::collections::HashMap;

/// Limit on the size of the activations, so that no sum of offsets overflows.
const MAX_BYTES: u64 = 1 << 62;

/// Positions in a plan's order at which a value is alive, both inclusive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub first: usize,
    pub last: usize,
}

/// The arena of a plan.
pub(super) struct Arena {
    index: HashMap<Location, usize>,
    pub tensors: Vec<Tensor>,
    /// By position in the order: the operand that a dispatch overwrites.
    in_place: Vec<Option<usize>>,
    pub report: MemoryReport,
    /// Placement if a symbol has no bound.
    pub open: Option<Open>,
}

/// A tensor while lifetimes are collected.
struct Record {
    location: Location,
    life: Life,
    size: Dim,
    bytes: u64,
    /// The record that contains it.
    parent: Option<usize>,
    /// The outermost record that contains it, or itself, and its first byte there.
    top: usize,
    offset: u64,
    /// The record that it overwrites.
    over: Option<usize>,
    /// The record whose slot it takes over, or itself.
    bottom: usize,
}

struct Records<'a, 'b> {
    c: &'b Compiler<'a>,
    index: HashMap<Location, usize>,
    all: Vec<Record>,
}

/// Bytes of `count` elements on a device, with [padding](DType::device_padding).
fn device_size(dtype: DType, count: &Dim) -> Result<Dim> {
    let size = Dim::from_usize(dtype.device_bytes());
    let unit = num::signed(dtype.device_padding());
    let bytes = count.mul(&size).map_err(|e| dim_error(&e))?;
    let units = bytes.ceil_div(unit).map_err(|e| dim_error(&e))?;
    let units = if units.as_const() == Some(0) {
        1.into()
    } else {
        units
    };
    units.mul(&unit.into()).map_err(|e| dim_error(&e))
}

/// Bytes at the bounds; 0 if the size has no bound.
fn most_bytes(c: &Compiler<'_>, size: &Dim) -> Result<u64> {
    match size.upper_bound(&c.limits) {
        Ok(v) => Ok(v.max(0).cast_unsigned()),
        Err(DimError::Unbound(s)) if c.open.contains(&s) => Ok(0),
        Err(e) => Err(dim_error(&e)),
    }
}

impl Records<'_, '_> {
    /// The record of a value, which is added if it is new, after those that contain it.
    fn record(&mut self, location: Location, dtype: DType, at: usize) -> Result<usize> {
        let mut missing = Vec::new();
        let (mut next, mut parent) = (Some(location), None);
        while let Some(location) = next {
            parent = self.index.get(&location).copied();
            if parent.is_some() {
                break;
            }
            missing.push(location);
            next = self.c.collected.parts.get(&location).map(|part| part.of);
        }
        for location in missing.into_iter().rev() {
            parent = Some(self.add(location, dtype, at, parent)?);
        }
        parent.ok_or_else(|| Error::other(Stage::Plan, "a value inside itself"))
    }

    fn add(&mut self, location: Location, dtype: DType, at: usize, parent: Option<usize>) -> Result<usize> {
        let count = match location {
            Location::Value(v) => match self.c.fact(v) {
                Some(f) => f.shape.count().map_err(|e| dim_error(&e))?,
                None => Dim::from(0),
            },
            Location::Temp(t) => self.c.collected.temps[t].1.clone(),
            Location::Weight(_)
            | Location::State(_)
            | Location::Live
            | Location::Known(_)
            | Location::Counters
            | Location::Fault => Dim::from(0),
        };
        // An operand may see the value as elements of another type.
        let own = match location {
            Location::Value(v) => self.c.storage_type(v)?,
            Location::Temp(t) => self.c.collected.temps[t].0,
            _ => dtype,
        };
        let size = device_size(own, &count)?;
        let bytes = most_bytes(self.c, &size)?.max(num::wide(own.device_padding()));
        let i = self.all.len();
        let part = self.c.collected.parts.get(&location);
        let outer = parent.and_then(|p| self.all.get(p)).map(|p| (p.top, p.offset));
        let (top, offset) = match (outer, part) {
            (Some((top, offset)), Some(part)) => (top, offset + part.offset),
            _ => (i, 0),
        };
        // A part without elements may start at the end of the whole.
        if let Some(whole) = self.all.get_mut(top) {
            whole.bytes = whole.bytes.max(offset.saturating_add(bytes));
        }
        self.index.insert(location, i);
        self.all.push(Record {
            location,
            life: Life { first: at, last: at },
            size,
            bytes,
            parent,
            top,
            offset,
            over: None,
            bottom: i,
        });
        Ok(i)
    }

    /// Marks a value as alive at a position.
    fn touch(&mut self, location: Location, dtype: DType, at: usize) -> Result<()> {
        if !matches!(location, Location::Value(_) | Location::Temp(_)) {
            return Ok(());
        }
        let i = self.record(location, dtype, at)?;
        self.extend(i, Life { first: at, last: at });
        Ok(())
    }

    fn extend(&mut self, i: usize, by: Life) {
        let life = &mut self.all[i].life;
        *life = Life {
            first: life.first.min(by.first),
            last: life.last.max(by.last),
        };
    }

    /// Extends the lives of values by those of the values that they contain.
    fn extend_containers(&mut self) {
        // A container comes before its contents.
        for i in (0..self.all.len()).rev() {
            if let Some(parent) = self.all[i].parent {
                self.extend(parent, self.all[i].life);
            }
        }
    }

    fn touch_value(&mut self, v: ValueId, at: usize) -> Result<()> {
        let root = self.c.collected.root(v);
        self.touch(Location::Value(root), self.c.storage_type(root)?, at)
    }

    fn has(&self, v: ValueId) -> bool {
        self.index
            .contains_key(&Location::Value(self.c.collected.root(v)))
    }

    /// Marks what host work reads from the device.
    fn touch_reads(&mut self, item: Item, at: usize) -> Result<()> {
        let c = self.c;
        match item {
            Item::Call(_) | Item::Known(_) => Ok(()),
            Item::Observe(v) => self.touch_value(v, at),
            Item::Host(id) => {
                let inputs = c
                    .graph
                    .node(id)
                    .into_iter()
                    .flat_map(|n| n.inputs.iter().enumerate());
                for (i, v) in inputs {
                    let Some(v) = *v else { continue };
                    let given = c.is_kept_elsewhere(v) || c.is_dims(v) || c.graph.is_input(v);
                    let read_back = !given && !c.is_made_on_host(v);
                    let reads = || c.graph.node(id).is_some_and(|n| n.op.reads(i));
                    if read_back || self.as_if_on_device(v) && reads() {
                        self.touch_value(v, at)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Marks what host work writes to the device: values that the device reads, or that are part of
    /// one. All reads must be marked before.
    fn touch_writes(&mut self, item: Item, at: usize) -> Result<()> {
        let c = self.c;
        let made: &[ValueId] = match &item {
            Item::Call(_) | Item::Observe(_) => &[],
            Item::Known(v) => std::slice::from_ref(v),
            Item::Host(id) => c.graph.node(*id).map_or(&[], |n| &n.outputs),
        };
        for v in made {
            let joined = c
                .collected
                .parts
                .contains_key(&Location::Value(c.collected.root(*v)));
            if self.has(*v) || joined || self.as_if_on_device(*v) {
                self.touch_value(*v, at)?;
            }
        }
        Ok(())
    }

    /// Whether the plan treats every node as if it had a kernel, and one could read or write this
    /// value.
    fn as_if_on_device(&self, v: ValueId) -> bool {
        let root = self.c.collected.root(v);
        self.c.options.every_on_device && !self.c.is_kept_elsewhere(root) && self.c.is_bounded(root)
    }

    /// An operand that the result of `call` may overwrite: same size and type, and not read later.
    fn candidate(&self, call: &Dispatch, at: usize) -> Option<(usize, usize, usize)> {
        let args: Vec<_> = call.args().collect();
        let out = args
            .iter()
            .position(|a| a.role == Role::Out && a.ty == Ty::Elem)?;
        let y: Operand = call.operands.get(out).copied().flatten()?;
        let yi = *self.index.get(&y.location)?;
        let yr = &self.all[yi];
        if yr.life.first != at || yr.parent.is_some() {
            return None;
        }
        for (i, operand) in call.operands.iter().enumerate() {
            let Some(x) = operand.filter(|_| args[i].ty == Ty::Elem && call.reads_what_it_writes(i)) else {
                continue;
            };
            let Some(&xi) = self.index.get(&x.location) else {
                continue;
            };
            let xr = &self.all[xi];
            let within = |o: &Operand| {
                self.index
                    .get(&o.location)
                    .is_some_and(|o| self.all[*o].top == xi)
            };
            let once = call.operands.iter().flatten().filter(|o| within(o)).count() == 1;
            let whole = xr.parent.is_none() && xr.size == yr.size && x.dtype == y.dtype;
            if once && whole && self.all[xr.bottom].life.last.max(xr.life.last) == at {
                return Some((i, xi, yi));
            }
        }
        None
    }

    /// One slot for each record that is not inside another and overwrites none, and the slots by
    /// record.
    fn slots(&self) -> (Vec<Slot>, HashMap<usize, usize>) {
        let (mut slots, mut slot_of) = (Vec::new(), HashMap::new());
        for (i, r) in self.all.iter().enumerate() {
            if r.parent.is_none() && r.over.is_none() {
                slot_of.insert(i, slots.len());
                slots.push(Slot {
                    first: r.life.first,
                    last: r.life.last,
                    bytes: r.bytes,
                    size: r.size.clone(),
                });
            }
        }
        (slots, slot_of)
    }

    /// What views and results in place save.
    fn savings(&self) -> Result<MemoryReport> {
        let (c, mut report) = (self.c, MemoryReport::default());
        for r in &self.all {
            report.without_reuse = report.without_reuse.saturating_add(r.bytes);
            let gained = match (r.parent, r.over) {
                (Some(_), _) => &mut report.gained_by_views,
                (None, Some(_)) => &mut report.gained_in_place,
                (None, None) => continue,
            };
            *gained = gained.saturating_add(r.bytes);
        }
        for v in c.collected.alias.keys() {
            // Another shape of the same bytes; without views it would be a copy.
            let root = c.collected.root(*v);
            if let Some(f) = c.fact(*v).filter(|_| !c.is_kept_elsewhere(root)) {
                let count = f.shape.count().map_err(|e| dim_error(&e))?;
                let bytes = most_bytes(c, &device_size(c.storage_type(root)?, &count)?)?;
                report.without_reuse = report.without_reuse.saturating_add(bytes);
                report.gained_by_views = report.gained_by_views.saturating_add(bytes);
            }
        }
        Ok(report)
    }

    fn name(&self, i: usize) -> String {
        match self.all[i].location {
            Location::Value(v) => self.c.graph.value(v).name.clone(),
            Location::Temp(t) => format!("scratch {t}"),
            Location::Weight(_)
            | Location::State(_)
            | Location::Live
            | Location::Known(_)
            | Location::Counters
            | Location::Fault => String::new(),
        }
    }

    fn tensor(&self, i: usize, offset: u64) -> Tensor {
        let r = &self.all[i];
        let inside = r.parent.map(|p| Shared::View(self.name(p)));
        Tensor {
            name: self.name(i),
            first: r.life.first,
            last: r.life.last,
            size: r.size.clone(),
            bytes: r.bytes,
            offset,
            shared: inside.or_else(|| r.over.map(|x| Shared::InPlace(self.name(x)))),
        }
    }
}

/// Fails if the sum of the slots exceeds [`MAX_BYTES`].
fn check_total(c: &Compiler<'_>, slots: &[Slot], align: u64) -> Result<()> {
    let add = |sum: u64, s: &Slot| sum.checked_add(s.bytes)?.checked_add(align);
    if slots
        .iter()
        .try_fold(0u64, add)
        .is_some_and(|sum| sum <= MAX_BYTES)
    {
        return Ok(());
    }
    let at: Vec<String> = c.limits.iter().map(|(s, v)| format!("{s} = {v}")).collect();
    let what = format!("the size of the activations overflows at {}", at.join(", "));
    Err(Error::other(Stage::Plan, what))
}

impl Arena {
    pub fn new(c: &Compiler<'_>, items: &[Item]) -> Result<Self> {
        let mut records = Records {
            c,
            index: HashMap::new(),
            all: Vec::new(),
        };
        for (at, item) in items.iter().enumerate() {
            let Item::Call(i) = item else { continue };
            for o in c.collected.calls[*i].call.operands.iter().flatten() {
                records.touch(o.location, o.dtype, at)?;
            }
        }
        for (at, item) in items.iter().enumerate() {
            records.touch_reads(*item, at)?;
        }
        for v in c.graph.outputs() {
            let root = c.collected.root(*v);
            // A value made on the host stays there for the caller, unless the output is another
            // view of it.
            let kept = c.is_kept_elsewhere(root) || root == *v && c.is_made_on_host(root);
            if !kept || records.has(root) {
                records.touch_value(root, items.len())?;
            }
        }
        for (at, item) in items.iter().enumerate() {
            records.touch_writes(*item, at)?;
        }
        for v in c.graph.inputs() {
            if records.has(*v) {
                records.touch_value(*v, 0)?;
            }
        }
        records.extend_containers();
        let mut in_place = vec![None; items.len()];
        for (at, item) in items.iter().enumerate() {
            let Item::Call(i) = item else { continue };
            let Some((operand, x, y)) = records.candidate(&c.collected.calls[*i].call, at) else {
                continue;
            };
            let slot = records.all[x].bottom;
            let last = records.all[y].life.last;
            let life = &mut records.all[slot].life;
            life.last = life.last.max(last);
            records.all[y].over = Some(x);
            records.all[y].bottom = slot;
            in_place[at] = Some(operand);
        }
        Self::place(c, records, in_place)
    }

    fn place(c: &Compiler<'_>, records: Records<'_, '_>, in_place: Vec<Option<usize>>) -> Result<Self> {
        let align = c.caps.profile.view_align.max(8);
        let constraints = c.bounded(c.graph.constraints().clone(), &c.limits)?;
        let (slots, slot_of) = records.slots();
        check_total(c, &slots, align)?;
        let by_proof = || memory::by_proof(&slots, align, &constraints);
        let packed = memory::pack(&slots, align);
        let pools = if c.open.is_empty() {
            None
        } else {
            Some(by_proof().map_err(|e| dim_error(&e))?)
        };
        let mut report = records.savings()?;
        report.arena = packed.total.max(align);
        report.lower_bound = memory::lower_bound(&slots);
        let sum: u64 = slots.iter().map(|s| s.bytes).sum();
        report.gained_by_packing = sum.saturating_sub(report.arena);
        let sum = |pools: &Pools| Dim::sum(&pools.sizes);
        let formula = match &pools {
            Some(p) => sum(p),
            // Without a short formula, use the pools by proof, which never need less.
            None => match memory::formula(&slots, &packed, align, &constraints) {
                Some(formula) => Ok(formula),
                None => by_proof().and_then(|p| sum(&p)),
            },
        };
        report.formula = formula.map_or_else(|e| e.to_string(), |f| f.to_string());
        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        for (i, Record { top, offset, .. }) in records.all.iter().enumerate() {
            let slot = slot_of[&records.all[*top].bottom];
            if let Some(p) = &pools {
                places.push((p.pool[slot], *offset));
            }
            tensors.push(records.tensor(i, packed.offsets[slot] + offset));
        }
        let open = pools.map(|p| Open {
            symbols: c.open.iter().cloned().collect(),
            reserved: Bindings::new(),
            pools: p.sizes,
            tensors: places,
        });
        Ok(Self {
            index: records.index,
            tensors,
            in_place,
            report,
            open,
        })
    }

    pub fn in_place(&self, time: usize) -> Option<usize> {
        self.in_place.get(time).copied().flatten()
    }

    pub fn storage_of(&self, location: Location) -> Option<Storage> {
        let tensor = *self.index.get(&location)?;
        let t = self.tensors.get(tensor)?;
        Some(Storage::Arena {
            tensor,
            offset: t.offset,
            len: t.bytes,
        })
    }

    /// Bytes of `count` elements at the bounds.
    pub fn bytes(c: &Compiler<'_>, dtype: DType, count: &Dim) -> Result<u64> {
        Ok(most_bytes(c, &device_size(dtype, count)?)?.max(num::wide(dtype.device_padding())))
    }
}
