//! Lowering: what an operator uses to choose its kernels.
//!
//! An operator gets a [`LowerCx`] for one node ([`Op::lower`](crate::graph::op::Op::lower)). It
//! looks at shapes and at the [`DeviceProfile`], requests operands ([`Pack`] is the packed form of
//! a constant), and emits one [`Call`] per dispatch. The planner then orders the calls and places
//! their operands in memory. This module knows nothing about plans.

mod call;
mod collected;
mod context;
mod emit;
mod pack;
mod views;

pub use crate::backend::{DeviceProfile, Simd, TensorCores};
pub(crate) use call::Dispatch;
pub use call::{Arguments, Block, Call, Field, Location, Operand, WithOperands};
pub use collected::Condition;
pub(crate) use collected::{Collected, LiveTable};
pub use context::LowerCx;
pub(crate) use context::Scope;
pub use pack::{Pack, WeightKey};
