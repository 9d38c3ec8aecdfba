//! A dispatch and its operands.

use crate::backend::kernel::epilogue::{Beside, Epilogue};
use crate::backend::kernel::image::ImageKind;
use crate::backend::kernel::subgroup_size;
use crate::backend::kernel::{self, Arg, Kernel, KernelSpec, OperandOf, Stage, Symbolic, TypedKernel};
use crate::backend::tunable::Tuning;
use crate::graph::ValueId;
use crate::shape::Dim;
use crate::tensor::DType;
use std::collections::BTreeMap;
use std::marker::PhantomData;

/// Where an operand is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An activation: a slot of the arena.
    Value(ValueId),
    /// Scratch memory of one node.
    Temp(usize),
    /// A packed constant, by index into the plan's weights.
    Weight(usize),
    /// A state, by index into the graph's states.
    State(usize),
    /// The plan's table of values that change at every step; see
    /// [`LowerCx::live`](super::LowerCx::live).
    Live,
    /// A tensor whose elements are known as expressions: a range of that table, by index.
    Known(usize),
    /// Words that are zero between dispatches; see [`LowerCx::counters`](super::LowerCx::counters).
    Counters,
    /// The word that says which data of a run is wrong; see
    /// [`LowerCx::fault`](super::LowerCx::fault).
    Fault,
}

/// An operand of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Where the operand is stored.
    pub location: Location,
    /// Element type on the device.
    pub dtype: DType,
}

impl Operand {
    /// The operand for kernels that move elements and need not know what they hold: a 64-bit
    /// integer becomes two words. Also returns the number of words of an element.
    #[must_use]
    pub fn words(self) -> (Self, i64) {
        let words = Self {
            dtype: DType::I32,
            ..self
        };
        if self.dtype == DType::I64 {
            (words, 2)
        } else {
            (self, 1)
        }
    }
}

/// Several results in one contiguous range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub operand: Operand,
    /// First element of each result.
    pub starts: Vec<u64>,
}

/// The value of a field in a kernel's parameter struct.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// An integer, evaluated at each bind.
    Dim(Dim),
    F32(f32),
}

impl From<Dim> for Field {
    fn from(d: Dim) -> Self {
        Self::Dim(d)
    }
}

impl From<&Dim> for Field {
    fn from(d: &Dim) -> Self {
        Self::Dim(d.clone())
    }
}

impl From<f32> for Field {
    fn from(v: f32) -> Self {
        Self::F32(v)
    }
}

/// The arguments of a dispatch that is planned.
#[derive(Clone, Copy, Debug)]
pub struct Planned;

impl Stage for Planned {
    type Operand = Operand;
    type U32 = Dim;
    type I32 = Dim;
    type F32 = f32;
}

impl Symbolic for Planned {
    type Field = Field;
    fn of_u32(value: Dim) -> Field {
        value.into()
    }
    fn of_i32(value: Dim) -> Field {
        value.into()
    }
    fn of_f32(value: f32) -> Field {
        value.into()
    }
}

/// A dispatch of a kernel with arguments `A`, under construction.
#[derive(Debug)]
pub struct Call<A> {
    pub(super) dispatch: Dispatch,
    pub(super) epilogue: Option<WithOperands>,
    /// Indices of operands that the kernel reads only in aligned vectors of four.
    pub(super) vec4: Vec<usize>,
    args: PhantomData<fn(A)>,
}

/// A dispatch. Operands and fields of the epilogue come last.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub kernel: &'static Kernel,
    pub workgroup: u32,
    pub defines: BTreeMap<&'static str, i64>,
    pub operands: Vec<Option<Operand>>,
    pub grid: [Dim; 3],
    pub fields: Vec<Field>,
    pub epilogue: Option<Epilogue>,
    pub in_place: bool,
    pub padded: bool,
    pub tuning: Option<Tuning>,
    pub images: BTreeMap<usize, ImageKind>,
}

impl Dispatch {
    /// The operands as the kernel declares them; those of the epilogue come last.
    pub fn args(&self) -> impl Iterator<Item = &'static Arg> + '_ {
        kernel::args(self.kernel, self.epilogue.as_ref())
    }

    /// What its kernel is compiled for, if the result shares the memory of operand `in_place`.
    pub fn spec(&self, in_place: Option<usize>) -> KernelSpec {
        KernelSpec {
            kernel: self.kernel,
            workgroup: self.workgroup,
            defines: self.defines.clone(),
            operands: self.operands.iter().map(|o| o.map(|o| o.dtype)).collect(),
            in_place,
            epilogue: self.epilogue.clone(),
            images: self.images.clone(),
        }
    }

    /// Whether the output may alias operand `i`: each work-item reads an element before writing it.
    pub fn reads_what_it_writes(&self, i: usize) -> bool {
        match i.checked_sub(self.kernel.args.len()) {
            None => self.in_place,
            Some(further) => self
                .epilogue
                .as_ref()
                .and_then(|e| e.operands.get(further))
                .is_some_and(|o| o.beside == Beside::Same),
        }
    }
}

impl<A> Call<A> {
    /// A dispatch of `kernel` with work-groups of `workgroup` work-items. The default grid is one
    /// work-group.
    pub fn new(kernel: &'static TypedKernel<A>, workgroup: u32) -> Self {
        let dispatch = Dispatch {
            kernel,
            workgroup,
            defines: BTreeMap::new(),
            operands: Vec::new(),
            grid: [1.into(), 1.into(), 1.into()],
            fields: Vec::new(),
            epilogue: None,
            in_place: false,
            padded: false,
            tuning: None,
            images: BTreeMap::new(),
        };
        Self {
            dispatch,
            epilogue: None,
            vec4: Vec::new(),
            args: PhantomData,
        }
    }

    /// Sets the number of work-items in a work-group.
    #[must_use]
    pub fn workgroup(mut self, items: u32) -> Self {
        self.dispatch.workgroup = items;
        self
    }

    /// Records the tuning that determined how the work is divided; `tlite tune` may choose another
    /// one. Also requests the tuning's subgroup size.
    #[must_use]
    pub fn tuned_by(mut self, tuning: Tuning) -> Self {
        if let Some(subgroup) = tuning.tunable.subgroup_size(&tuning.choice) {
            self.dispatch
                .defines
                .insert(subgroup_size::DEFINE, i64::from(subgroup.number()));
        }
        self.dispatch.tuning = Some(tuning);
        self
    }

    /// Sets a numeric constant of the kernel's source.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: i64) -> Self {
        self.dispatch.defines.insert(name, value);
        self
    }

    /// Sets a define to 1 if `set`.
    #[must_use]
    pub fn define_if(self, name: &'static str, set: bool) -> Self {
        self.form(set.then_some(name))
    }

    /// Selects a form of the kernel by its define, if it has one ([`forms!`](crate::forms)).
    #[must_use]
    pub fn form(self, define: Option<&'static str>) -> Self {
        match define {
            Some(name) => self.define(name, 1),
            None => self,
        }
    }

    /// Whether this numeric constant is set.
    pub fn is_defined(&self, name: &str) -> bool {
        self.dispatch.defines.contains_key(name)
    }

    /// Sets the number of work-groups on each axis.
    #[must_use]
    pub fn grid(mut self, x: impl Into<Dim>, y: impl Into<Dim>, z: impl Into<Dim>) -> Self {
        self.dispatch.grid = [x.into(), y.into(), z.into()];
        self
    }

    /// Sets the epilogue, which is applied to each result before it is stored.
    #[must_use]
    pub fn epilogue(mut self, with: WithOperands) -> Self {
        self.epilogue = Some(with);
        self
    }

    /// Declares that the kernel reads element `i` of its inputs only to compute element `i` of its
    /// output, so that the output may overwrite an input that is not read later.
    #[must_use]
    pub fn may_work_in_place(mut self) -> Self {
        self.dispatch.in_place = true;
        self
    }

    /// Declares that the kernel reads an operand only in aligned vectors of four (`x_at4`). The
    /// operand can then be read through an image, if plans use images
    /// ([`crate::backend::kernel::image`]).
    #[must_use]
    pub fn reads_vec4(mut self, operand: OperandOf<A>) -> Self {
        self.vec4.push(operand.index);
        self
    }

    /// Declares that the dispatch stays correct if a length in its sizes is padded: the padding of
    /// its operands affects only the padding of its results. A plan pads a length only if every
    /// dispatch that depends on the length declares this.
    #[must_use]
    pub fn may_be_padded(mut self) -> Self {
        self.dispatch.padded = true;
        self
    }
}

/// An epilogue with its operands and the values of its parameters.
#[derive(Clone, Debug)]
pub struct WithOperands {
    /// The function and the layouts of its operands.
    pub epilogue: Epilogue,
    pub operands: Vec<Operand>,
    pub fields: Vec<Field>,
}
