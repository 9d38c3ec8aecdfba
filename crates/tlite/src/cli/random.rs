//! Models that are made up: the graph of a known model at its true size, with random weights.

use super::interrupt::Interrupt;
use super::load::model_path;
use super::options::{MODEL, MODEL_LONG, MODEL_OPTION, first_given, from_one, from_zero};
use super::quantize::group_size;
use clap::builder::PossibleValuesParser;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use tempfile::TempDir;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::executor::WeightSource;
use transformer_lite_convert::decoders::{Form, Spec, write};

/// Default number of weights that share a scale.
const GROUP_SIZE: usize = 128;
/// Heading of the options of random models.
const HEADING: &str = "Random models";

/// A model of files, as an argument or with `-m`, or a made-up one.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RandomOptions {
    #[arg(help = MODEL, long_help = MODEL_LONG, conflicts_with = "model_option")]
    model: Option<PathBuf>,
    #[arg(help = MODEL_OPTION, id = "model_option", short = 'm', long = "model", value_name = "MODEL")]
    option: Option<PathBuf>,
    /// Instead of MODEL, use this architecture with random E0M4 weights
    ///
    /// E0M4 is the 4-bit format of `tlite quantize`. The weights are generated on the device, so
    /// some kernels are measured without being validated first.
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["model", "model_option"],
        value_parser = PossibleValuesParser::new(Spec::all().map(|s| s.name)),
        help_heading = HEADING,
        hide_short_help = true
    )]
    random: Option<String>,
    /// Weights that share a scale, or `channel` for a whole column [default: 128]
    #[arg(long, value_name = "N", value_parser = group_size, help_heading = HEADING, hide_short_help = true)]
    group_size: Option<usize>,
    /// Use only the first N layers [default: all]
    #[arg(long, value_name = "N", value_parser = from_one, help_heading = HEADING, hide_short_help = true)]
    layers: Option<NonZeroUsize>,
    /// Seed of the weights [default: 0]
    #[arg(
        long,
        value_name = "N",
        value_parser = from_zero::<u32>,
        help_heading = HEADING,
        hide_short_help = true
    )]
    seed: Option<u32>,
}

/// The model of a command.
pub struct Source {
    /// The folder of the model, or its file.
    pub path: PathBuf,
    /// Where its weights come from.
    pub weights: WeightSource,
    /// The folder of a made-up model; removed on drop.
    _folder: Option<TempDir>,
}

impl RandomOptions {
    /// True if the model is made up.
    pub fn is_random(&self) -> bool {
        self.random.is_some()
    }

    /// A usage error for an option that needs `--random`. The parser cannot check it: `--random`
    /// excludes MODEL, so it never requires one of them beside it.
    fn check_alone(&self) -> Result<()> {
        let given = [
            ("--group-size", self.group_size.is_some()),
            ("--layers", self.layers.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        match first_given(&given) {
            Some(option) => Err(Error::usage(option, "has no effect without --random")),
            None => Ok(()),
        }
    }

    /// The model. Usage errors: none is given, more layers than the model has. Errors of
    /// [`model_path`].
    pub fn source(&self, interrupt: &Interrupt) -> Result<Source> {
        let given = self.option.as_ref().or(self.model.as_ref());
        let (mut spec, folder) = match (self.random.as_deref().and_then(Spec::find), given) {
            (Some(spec), _) => (spec, tempfile::tempdir()),
            (None, Some(path)) => {
                self.check_alone()?;
                return Ok(Source {
                    path: model_path(path, interrupt)?,
                    weights: WeightSource::Files,
                    _folder: None,
                });
            }
            (None, None) => {
                let names: Vec<&str> = Spec::all().map(|s| s.name).collect();
                let what = format!(
                    "no model is given; --random NAME makes one with random weights (NAME is one of {})",
                    names.join(", ")
                );
                return Err(Error::usage("MODEL", what));
            }
        };
        let layers = self.layers.map_or(spec.layers, NonZeroUsize::get);
        if layers > spec.layers {
            let what = format!("{layers} layers: {} has only {}", spec.name, spec.layers);
            return Err(Error::usage("--layers", what));
        }
        spec.layers = layers;
        let folder = folder.map_err(|e| Error::io("cannot write to", &std::env::temp_dir(), e))?;
        let path = folder.path().join(spec.name);
        std::fs::create_dir(&path).map_err(|e| Error::io("cannot create", &path, e))?;
        write(
            &spec,
            Form::E0m4(self.group_size.unwrap_or(GROUP_SIZE)),
            None,
            &path,
        )?;
        Ok(Source {
            path,
            weights: WeightSource::Random(self.seed.unwrap_or(0)),
            _folder: Some(folder),
        })
    }
}
