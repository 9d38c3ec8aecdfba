//! Copies a model with other values of some of its weights.

use super::MODEL;
use super::nodes::Change;
use super::source::{Origin, Source, copy_others};
use std::path::Path;
use transformer_lite::unstable::error::{Result, Stage};
use transformer_lite::unstable::files::kind::check_file;
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::onnx::write::{ModelWriter, write_file};
use transformer_lite::unstable::tensor::HostTensor;

/// Copies the model in the folder `input` with the values that `values` has for the names of
/// initializers, rounded to their types. Other files of the folder are copied too.
///
/// `folder` must exist and be empty. Errors: the model does not exist
/// ([`Error::is_usage`](transformer_lite::unstable::error::Error::is_usage)) or cannot be read; the
/// number of values differs from the initializer's; writing fails. After an error, files already
/// written remain.
pub fn replace_into<'a>(
    input: &Path,
    folder: &Path,
    values: &dyn Fn(&str) -> Option<&'a [f32]>,
) -> Result<()> {
    let path = input.join(MODEL);
    check_file("folder", &path)?;
    let source = Source::open(Stage::Convert, path)?;
    let mut weights = Weights::new(&source.path);
    let mut writer = ModelWriter::create(Stage::Convert, folder, MODEL, "")?;
    let (mut origins, mut written) = (Vec::new(), 0);
    for (i, t) in source.graph.initializer.iter().enumerate() {
        let new = values(&t.name);
        if new.is_none() && t.data_location != 1 {
            origins.push(Origin::Old(i));
            continue;
        }
        let mut tensor = weights.tensor(t)?;
        if let Some(new) = new {
            let new: Vec<f64> = new.iter().map(|v| f64::from(*v)).collect();
            tensor = HostTensor::from_f64s(tensor.dtype(), tensor.shape(), &new)
                .map_err(|e| source.bad(format!("tensor \"{}\": {e}", t.name)))?;
        }
        writer.add_external(&t.name, &tensor)?;
        origins.push(Origin::New(written));
        written += 1;
    }
    let (tensors, _) = writer.into_initializers()?;
    let changes = vec![Change::Keep; source.graph.node.len()];
    let model = source.assemble(&changes, &origins, &tensors)?;
    copy_others(input, folder, &source.external_files())?;
    write_file(&folder.join(MODEL), &model)
}
