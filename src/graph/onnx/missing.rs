//! Error for unsupported parts of a model: all of them at once, with their locations.

use crate::graph::op::OpError;
use std::collections::HashMap;
use std::fmt;

/// Maximum number of kinds that are printed.
const MAX_KINDS: usize = 20;
/// Maximum number of locations printed per kind.
const MAX_PLACES: usize = 3;

/// One unsupported part of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// The operator type; `input`, `initializer` or `opset` for other parts.
    pub op: String,
    /// Name of the node, value or domain. Nodes without a name are named by type and position.
    pub name: String,
    /// The enclosing bodies, innermost first; empty in the model's own graph.
    pub inside: String,
    /// Why it is not supported.
    pub source: OpError,
}

impl Missing {
    fn place(&self) -> String {
        format!("\"{}\"{}", self.name, self.inside)
    }
}

/// All unsupported parts of a model, in the file's order; at least one. The source of the import
/// error.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingParts(pub Vec<Missing>);

impl fmt::Display for MissingParts {
    /// One line per operator and reason, with the first locations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<(&Missing, Vec<String>)> = Vec::new();
        let mut index: HashMap<(&str, String), usize> = HashMap::new();
        for part in &self.0 {
            let key = (part.op.as_str(), part.source.to_string());
            let at = *index.entry(key).or_insert(kinds.len());
            match kinds.get_mut(at) {
                Some((_, places)) => places.push(part.place()),
                None => kinds.push((part, vec![part.place()])),
            }
        }
        let one = kinds.len() == 1;
        if !one {
            write!(f, "{} unsupported parts, of {} kinds:", self.0.len(), kinds.len())?;
        }
        for (kind, places) in kinds.iter().take(MAX_KINDS) {
            let shown: Vec<&str> = places.iter().take(MAX_PLACES).map(String::as_str).collect();
            let (start, shown) = (if one { "" } else { "\n  " }, shown.join(", "));
            write!(f, "{start}{} {shown}", kind.op)?;
            if places.len() > MAX_PLACES {
                write!(f, " and {} more", places.len() - MAX_PLACES)?;
            }
            write!(f, ": {}", kind.source)?;
        }
        if kinds.len() > MAX_KINDS {
            write!(f, "\n  and {} more kinds", kinds.len() - MAX_KINDS)?;
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
