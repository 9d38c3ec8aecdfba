//! Lowering: the interface through which an operator chooses its kernels.
//!
//! [`Op::lower`](crate::graph::op::Op::lower) gets a [`LowerCx`] for one node. From the shapes and
//! the [`DeviceProfile`], the operator chooses kernels. It requests operands ([`Pack`] is the
//! packed form of a constant) and emits one [`Call`] per dispatch. The planner then orders the
//! calls and places their operands in memory. This module does not depend on plans.

mod call;
mod collected;
mod context;
pub mod dots;
mod emit;
mod pack;
mod views;

pub use crate::backend::{DeviceProfile, TensorCores};
pub(crate) use call::Dispatch;
pub use call::{Block, Call, Field, Location, Operand, Planned, WithOperands};
pub use collected::Condition;
pub(crate) use collected::{Collected, LiveTable};
pub use context::LowerCx;
pub(crate) use context::Scope;
pub use pack::{Pack, WeightKey};
