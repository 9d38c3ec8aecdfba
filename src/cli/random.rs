//! Models that are made up, in place of a folder: the graph of a known model at its true size, and weights of a seed.

use super::interrupt::Interrupt;
use super::model::resolve;
use super::quantize::group_size;
use crate::decoders::{Form, Spec, write};
use crate::error::{Error, Result};
use crate::executor::WeightSource;
use clap::builder::PossibleValuesParser;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Weights that share a scale, unless another number is asked for.
const GROUP_SIZE: usize = 128;

/// Which model is made up, where one is.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Made-up models")]
pub struct RandomOptions {
    /// In place of MODEL: a model of the sizes of this one in E0M4, with random weights that are made on the device. Not all of its kernels
    /// can be checked before they are measured
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with = "model",
        value_parser = PossibleValuesParser::new(Spec::all().map(|s| s.name))
    )]
    random: Option<String>,
    /// Weights that share a scale, or `channel` for a whole column [default: 128]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = group_size)]
    group_size: Option<usize>,
    /// The first N layers alone [default: all]
    #[arg(long, value_name = "N", value_parser = super::options::from_one, allow_negative_numbers = true)]
    layers: Option<NonZeroUsize>,
    /// Seed of the weights [default: 0]
    #[arg(long, value_name = "N", value_parser = super::options::from_zero::<u32>, allow_negative_numbers = true)]
    seed: Option<u32>,
}

/// A model as commands take it.
pub struct Source {
    path: PathBuf,
    /// Where its weights come from.
    pub weights: WeightSource,
    /// The folder of a model that is made up, which ends with this.
    _folder: Option<TempDir>,
}

impl Source {
    /// The folder of the model, or its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl RandomOptions {
    /// A usage error for an option that has no effect on a model of files. `clap` does not see it: what an option requires is not asked
    /// for beside MODEL, which excludes that.
    fn check_alone(&self) -> Result<()> {
        let given = [
            ("--group-size", self.group_size.is_some()),
            ("--layers", self.layers.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Error::usage(option, "has no effect without --random")),
            None => Ok(()),
        }
    }

    /// The model that `given` stands for, or the one that is made up in its place. Usage errors: neither of them, more layers than the model
    /// has; errors also as of [`resolve`].
    pub fn source(&self, given: Option<&Path>, interrupt: &Interrupt) -> Result<Source> {
        let (mut spec, folder) = match (self.random.as_deref().and_then(Spec::find), given) {
            (Some(spec), _) => (spec, tempfile::tempdir()),
            (None, Some(path)) => {
                self.check_alone()?;
                return Ok(Source {
                    path: resolve(path, interrupt)?,
                    weights: WeightSource::Files,
                    _folder: None,
                });
            }
            (None, None) => return Err(Error::usage("MODEL", "no model is given, and none with --random")),
        };
        let layers = self.layers.map_or(spec.layers, NonZeroUsize::get);
        if layers > spec.layers {
            let what = format!("{layers}: {} has {} layers", spec.name, spec.layers);
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
