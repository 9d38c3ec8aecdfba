//! Decoders with random weights that run rows of several sequences.

use transformer_lite::unstable::executor::WeightSource;
use transformer_lite::unstable::llm::load::{BatchOptions, LoadOptions, LoadedRows};
use transformer_lite::unstable::llm::{ModelFolder, StepRunner};
use transformer_lite::unstable::placement::{BackendChoice, Placement};
use transformer_lite_convert::decoders::{self, Form, Spec};

/// Steps of `sequences` sequences on the backend and the model that the command line names, by
/// default `default`. Prints both.
pub fn start(default: [&str; 2], context: usize, sequences: usize) -> StepRunner {
    let mut names = std::env::args().skip(1).filter(|a| !a.starts_with('-'));
    let [backend, name] = default.map(|name| names.next().unwrap_or_else(|| name.to_owned()));
    let spec = Spec::find(&name).expect("a known model");
    let dir = tempfile::tempdir().expect("a folder for temporary files");
    decoders::write(&spec, Form::E0m4(128), None, dir.path()).expect("room for a graph");
    let folder = ModelFolder::holding("model", dir.path(), &[]).expect("a model");
    let options = LoadOptions {
        place: Placement {
            backend: backend.parse::<BackendChoice>().expect("a backend"),
            ..Placement::default()
        },
        context: Some(context),
        weights: WeightSource::Random(0),
        ..LoadOptions::default()
    };
    let batch = BatchOptions {
        sequences,
        ..BatchOptions::default()
    };
    let loaded = LoadedRows::new(&folder, &options, &batch).expect("a model that runs in batches");
    println!("{name} on {} ({})", loaded.place.device, loaded.place.backend);
    StepRunner::start(loaded.model).expect("a thread")
}
