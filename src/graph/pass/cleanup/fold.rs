//! Turns nodes whose results derivation computed into constants.

use crate::error::Result;
use crate::graph::pass::Pass;
use crate::graph::{Edit, ValueId};

pub const FOLD: Pass = Pass {
    name: "fold",
    does: "turns results that derivation computed into constants",
    refuses: "results above 1 MiB; nodes that run graphs",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let known: Vec<ValueId> = edit
        .nodes()
        .flat_map(|(_, n)| n.outputs.iter().copied())
        .filter(|v| {
            edit.value(*v)
                .fact
                .as_ref()
                .is_some_and(|f| f.as_const().is_some())
        })
        .collect();
    for v in known {
        let what = format!("fold \"{}\"", edit.value(v).name);
        if edit.begin(&what) {
            edit.make_const(v);
        }
    }
    Ok(())
}
