//! Graphs, passes, plans and kernels of the engine.

mod batch;
mod candidates;
mod decoders;
mod deep;
mod finite;
mod fusion;
mod golden;
mod integer;
mod kernels;
mod limits;
mod plans;
mod public;
mod quotas;
mod shape_values;
mod symbolic_cases;
