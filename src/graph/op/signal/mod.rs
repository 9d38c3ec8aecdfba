pub mod dft;
pub mod mel_weights;
pub mod tfidf;
pub mod window_function;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[&dft::DEF, &mel_weights::DEF, &tfidf::DEF, &window_function::DEF];
