//! What a model asks for and this engine does not have: all of it at once, with its places.

use crate::graph::op::OpError;
use std::fmt;

/// Most kinds of missing parts that are printed.
const MOST_KINDS: usize = 20;
/// Most places of one kind that are printed.
const MOST_PLACES: usize = 3;

/// One part of a model that cannot be read, with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The operator type; `input`, `initializer` or `opset` for parts that are no nodes.
    pub op: String,
    /// Name of the node, value or domain. Nodes without a name are named after their type and position.
    pub name: String,
    /// The bodies that it stands in, innermost first; empty in the model's own graph.
    pub inside: String,
    /// Why it cannot be read.
    pub source: OpError,
}

impl Missing {
    fn place(&self) -> String {
        format!("\"{}\"{}", self.name, self.inside)
    }
}

/// Every part of a model that cannot be read, in the file's order; at least one. The source of the error that import gives.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingParts(pub Vec<Missing>);

impl fmt::Display for MissingParts {
    /// A line for each operator and reason, with the first places.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<(&Missing, Vec<String>)> = Vec::new();
        for part in &self.0 {
            match kinds
                .iter_mut()
                .find(|(k, _)| k.op == part.op && k.source == part.source)
            {
                Some((_, places)) => places.push(part.place()),
                None => kinds.push((part, vec![part.place()])),
            }
        }
        let one = kinds.len() == 1;
        if !one {
            write!(f, "{} reasons, of {} kinds:", self.0.len(), kinds.len())?;
        }
        for (kind, places) in kinds.iter().take(MOST_KINDS) {
            let shown: Vec<&str> = places.iter().take(MOST_PLACES).map(String::as_str).collect();
            let (start, shown) = (if one { "" } else { "\n  " }, shown.join(", "));
            write!(f, "{start}{} {shown}", kind.op)?;
            if places.len() > MOST_PLACES {
                write!(f, " and {} more", places.len() - MOST_PLACES)?;
            }
            write!(f, ": {}", kind.source)?;
        }
        if kinds.len() > MOST_KINDS {
            write!(f, "\n  and {} kinds more", kinds.len() - MOST_KINDS)?;
        }
        Ok(())
    }
}

impl std::error::Error for MissingParts {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let first: &Missing = self.0.first()?;
        Some(&first.source)
    }
}
