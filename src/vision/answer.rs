//! What a vision model's outputs say: classes, objects.

use super::boxes::{self, Found};
use super::labels::Labels;
use super::picture::Prepared;
use super::scores::{self, Top};
use crate::error::Result;
use crate::runner::Named;
use crate::tensor::HostTensor;

/// How outputs are read.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Names of classes.
    pub labels: Option<Labels>,
    /// Number of classes that the model's metadata names.
    pub classes: Option<usize>,
    /// Number of classes that are listed.
    pub top: usize,
    /// Names of the outputs whose largest elements get probabilities.
    pub softmax: Vec<String>,
}

impl Reading {
    /// The largest elements of an output that may be a classifier's scores; see
    /// [`scores::largest`].
    pub fn top(&self, name: &str, tensor: &HostTensor) -> Vec<Top> {
        let mut top = scores::largest(tensor, self.top, self.softmax.iter().any(|s| s == name));
        for one in &mut top {
            one.label = self.label(one.index);
        }
        top
    }

    /// The objects in a picture with a score of at least `least`, and the number of classes if the
    /// outputs tell it; see [`boxes::objects`].
    pub fn objects(
        &self,
        outputs: &[Named],
        picture: &Prepared,
        least: f32,
    ) -> Result<(Vec<Found>, Option<usize>)> {
        let (mut found, classes) = boxes::objects(outputs, picture, self.classes, least)?;
        for one in &mut found {
            one.label = self.label(one.class);
        }
        Ok((found, classes))
    }

    fn label(&self, class: usize) -> Option<String> {
        self.labels.as_ref()?.get(class).map(str::to_owned)
    }
}
