//! Model files, read without the importer.

use transformer_lite::unstable::graph::onnx::proto;
use transformer_lite::unstable::graph::onnx::write::IR_VERSION;

pub mod read_back;
