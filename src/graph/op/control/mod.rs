pub mod if_else;
pub mod loop_body;
pub mod recurrent;
pub mod scan;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[&if_else::DEF, &loop_body::DEF, &recurrent::DEF, &scan::DEF];
