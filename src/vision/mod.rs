//! Pictures in, answers out: what vision models need around a run.
//!
//! * [`picture`] decodes, scales and normalizes pictures;
//! * [`set`] finds pictures in folders and runs them in batches;
//! * [`answer`] says what outputs mean, by the most likely classes of [`scores`] with their
//!   [`labels`], and the objects of [`boxes`];
//! * [`mask`] makes pictures of masks.
#![warn(missing_docs)]

pub mod answer;
pub mod boxes;
pub mod labels;
pub mod mask;
pub mod picture;
mod resample;
pub mod scores;
pub mod set;
