//! Options of pictures, and the sizes of pictures that a model takes.

use crate::cli::choices;
use crate::cli::options::{first_given, whole};
use std::collections::BTreeSet;
use transformer_lite::unstable::runner::Runner;
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Symbol};
use transformer_lite::unstable::vision::picture::{Fit, IMAGENET, PictureOptions};

/// Options that make tensors of pictures.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Pictures")]
pub struct PictureArgs {
    /// Scale pictures to this size, or to N x N [default: that of the input]
    ///
    /// If the input has no fixed size, each picture keeps its own size.
    #[arg(long, value_name = "N|WxH", value_parser = size)]
    pub image_size: Option<(u32, u32)>,
    /// Round the picture's size up to a multiple of N
    #[arg(long, value_name = "N", value_parser = multiple, conflicts_with = "image_size", hide_short_help = true)]
    image_multiple: Option<u32>,
    /// How to fit pictures whose aspect ratio differs from the input's [default: stretch]
    #[arg(long, value_parser = choices::fit(), value_name = "HOW", hide_short_help = true)]
    image_fit: Option<Fit>,
    /// Mean color (0 to 1) to subtract, or `imagenet`
    ///
    /// `imagenet` is 0.485,0.456,0.406 and also sets --image-std to 0.229,0.224,0.225.
    #[arg(long, value_name = "F,F,F", value_parser = mean, allow_hyphen_values = true)]
    image_mean: Option<[f32; 3]>,
    /// Divide by this standard deviation after subtracting the mean
    #[arg(long, value_name = "F,F,F", value_parser = deviation, allow_hyphen_values = true, hide_short_help = true)]
    image_std: Option<[f32; 3]>,
    /// Order channels blue, green, red
    #[arg(long, hide_short_help = true)]
    image_bgr: bool,
}

impl PictureArgs {
    /// The first of these options that is given.
    pub fn given(&self) -> Option<&'static str> {
        first_given(&[
            ("--image-size", self.image_size.is_some()),
            ("--image-multiple", self.image_multiple.is_some()),
            ("--image-fit", self.image_fit.is_some()),
            ("--image-mean", self.image_mean.is_some()),
            ("--image-std", self.image_std.is_some()),
            ("--image-bgr", self.image_bgr),
        ])
    }

    /// What they ask for; `usual` where an option is not given.
    pub fn over(&self, usual: &PictureOptions) -> PictureOptions {
        let deviation = match self.image_mean {
            Some(mean) if mean == IMAGENET[0] => IMAGENET[1],
            Some(_) => [1.0; 3],
            None => usual.deviation,
        };
        PictureOptions {
            size: self
                .image_size
                .or(usual.size.filter(|_| self.image_multiple.is_none())),
            multiple: self.image_multiple.unwrap_or(usual.multiple),
            fit: self.image_fit.unwrap_or(usual.fit),
            mean: self.image_mean.unwrap_or(usual.mean),
            deviation: self.image_std.unwrap_or(deviation),
            bgr: self.image_bgr || usual.bgr,
        }
    }
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let (w, h) = text.split_once('x').unwrap_or((text, text));
    let pair = w.parse().ok().zip(h.parse().ok());
    pair.filter(|(w, h)| *w > 0 && *h > 0)
        .ok_or_else(|| "expected N or WIDTHxHEIGHT, as in 224 or 640x480".to_owned())
}

fn multiple(text: &str) -> Result<u32, String> {
    whole(text, 1, 4096)
}

fn deviation(text: &str) -> Result<[f32; 3], String> {
    let values = triple(text)?;
    if values.contains(&0.0) {
        return Err("must not be 0".to_owned());
    }
    Ok(values)
}

fn triple(text: &str) -> Result<[f32; 3], String> {
    let values: Option<Vec<f32>> = text.split(',').map(|v| v.trim().parse().ok()).collect();
    match values.as_deref() {
        Some([a, b, c]) if [a, b, c].iter().all(|v| v.is_finite()) => Ok([*a, *b, *c]),
        Some([a]) if a.is_finite() => Ok([*a; 3]),
        _ => Err("expected three numbers, as in 0.5,0.5,0.5, or one".to_owned()),
    }
}

fn mean(text: &str) -> Result<[f32; 3], String> {
    if text == "imagenet" {
        return Ok(IMAGENET[0]);
    }
    triple(text)
        .map_err(|_| "expected `imagenet`, three numbers as in 0.485,0.456,0.406, or one number".to_owned())
}

/// Numbers of classes of the models that are trained on `ImageNet`; some have one for the
/// background.
const IMAGENET_CLASSES: [i64; 2] = [1000, 1001];

impl PictureArgs {
    /// A note with options to try for a model that looks like a classifier of `ImageNet`, from a
    /// picture for `input` to a row of scores in one of `outputs`. `None` for another model, and
    /// where options for these were given.
    pub fn suggestion(&self, input: &Fact, outputs: &[Vec<usize>]) -> Option<String> {
        let options = self.missing(input, outputs)?;
        Some(format!(
            "this looks like an ImageNet classifier; most of them need {options}"
        ))
    }

    /// A note on the pictures of a set for an input without a fixed size, unless a size is given.
    pub fn open_size(&self, input: &Fact) -> Option<&'static str> {
        let open = sides(input).is_some_and(|[h, w]| h.as_const().is_none() || w.as_const().is_none());
        (open && self.image_size.is_none()).then_some(
            "the model takes pictures of any size, so each keeps its own size; \
             --image-size WxH sets one, and --image-multiple N rounds it up, as many detectors require",
        )
    }

    fn missing(&self, input: &Fact, outputs: &[Vec<usize>]) -> Option<String> {
        let square = sides(input).is_some_and(|[h, w]| h.as_const().is_some() && h == w);
        let classes = |shape: &Vec<usize>| {
            let last = shape.last().and_then(|n| i64::try_from(*n).ok());
            let rows: usize = shape.iter().rev().skip(1).product();
            rows == 1 && last.is_some_and(|n| IMAGENET_CLASSES.contains(&n))
        };
        if !square || !outputs.iter().any(classes) {
            return None;
        }
        let mut options = Vec::new();
        if self.image_mean.is_none() && self.image_std.is_none() {
            options.push("--image-mean imagenet");
        }
        if self.image_fit.is_none() {
            options.push("--image-fit crop");
        }
        (!options.is_empty()).then(|| options.join(" "))
    }
}

/// Height and width of a picture's input.
fn sides(fact: &Fact) -> Option<[&Dim; 2]> {
    match fact.shape.0.as_slice() {
        [_, c, h, w] if c.as_const().is_some() => Some([h, w]),
        [_, h, w, _] => Some([h, w]),
        _ => None,
    }
}

/// How to ask for sizes that the model takes, of pictures for these inputs whose sizes, `found`, it
/// refuses. `sized` where the option that gives them is there.
pub fn advice(runner: &Runner, pictures: &[&Fact], found: &Bindings, sized: bool) -> Option<String> {
    let mut open: BTreeSet<Symbol> = BTreeSet::new();
    let all: Vec<[&Dim; 2]> = pictures.iter().filter_map(|f| sides(f)).collect();
    all.iter().flatten().for_each(|d| d.symbols(&mut open));
    let rounded = |multiple: i64| {
        let mut sizes = found.clone();
        for s in &open {
            let n = found.get(s)?;
            sizes.set(s, n.checked_add(multiple - 1)? / multiple * multiple);
        }
        Some(sizes)
    };
    let fits = |multiple: &i64| rounded(*multiple).is_some_and(|b| runner.admits(&b).is_ok());
    let multiple = [2, 4, 8, 16, 32, 64, 128, 256].into_iter().find(fits);
    if let Some(n) = multiple.filter(|_| !sized) {
        return Some(format!("try --image-multiple {n}"));
    }
    let sizes = match multiple {
        Some(n) => rounded(n),
        None => {
            let mut others = found.clone();
            open.iter().for_each(|s| others.remove(s));
            runner.small_sizes(&open, &others)
        }
    }?;
    let [h, w] = all.first()?;
    let (h, w) = (h.eval(&sizes).ok()?, w.eval(&sizes).ok()?);
    Some(format!("try --image-size {w}x{h}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_options() {
        assert_eq!(size("640x480"), Ok((640, 480)));
        assert_eq!(size("224"), Ok((224, 224)));
        for bad in ["0", "0x4", "4x0", "x", "-1x2"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(triple("0.5"), Ok([0.5; 3]));
        assert_eq!(deviation("1, 2,-3"), Ok([1.0, 2.0, -3.0]));
        for bad in ["0", "1,0,1", "-0.0", "nan", "1,2"] {
            assert!(deviation(bad).is_err(), "{bad}");
        }
        assert_eq!(multiple("32"), Ok(32));
        for bad in ["0", "4097", "-1", "x"] {
            assert!(multiple(bad).unwrap_err().contains("from 1 to 4096"), "{bad}");
        }
    }

    #[test]
    fn classifiers_of_imagenet_are_recognized() {
        let fact = |shape: &[usize]| {
            Fact::new(
                transformer_lite::unstable::tensor::DType::F32,
                transformer_lite::unstable::shape::Shape::fixed(shape),
            )
        };
        let input = fact(&[1, 3, 224, 224]);
        let none = PictureArgs::default();
        let both = none.missing(&input, &[vec![1, 1000]]).unwrap();
        assert_eq!(both, "--image-mean imagenet --image-fit crop");
        let fit = PictureArgs {
            image_mean: Some([0.5; 3]),
            ..PictureArgs::default()
        };
        assert_eq!(fit.missing(&input, &[vec![1, 1001]]).unwrap(), "--image-fit crop");
        for (input, output) in [
            (fact(&[1, 3, 640, 640]), vec![1, 84, 8400]),
            (fact(&[1, 3, 224, 224]), vec![1, 10]),
            (fact(&[1, 1000]), vec![1, 1000]),
        ] {
            assert_eq!(none.missing(&input, &[output]), None);
        }
    }

    #[test]
    fn imagenet_sets_mean_and_deviation() {
        assert!(mean("foo").unwrap_err().contains("imagenet"));
        let args = PictureArgs {
            image_mean: Some(mean("imagenet").unwrap()),
            ..PictureArgs::default()
        };
        assert_eq!(args.given(), Some("--image-mean"));
        let plain = PictureOptions::default();
        assert_eq!(args.over(&plain).deviation, IMAGENET[1]);
        assert_eq!(PictureArgs::default().over(&plain), plain);
        // What the model's metadata says holds unless an option says otherwise.
        let of_model = args.over(&plain);
        assert_eq!(PictureArgs::default().over(&of_model), of_model);
        let grey = PictureArgs {
            image_mean: Some([0.5; 3]),
            ..PictureArgs::default()
        };
        assert_eq!(grey.over(&of_model).deviation, [1.0; 3]);
        assert_eq!(PictureArgs::default().given(), None);
    }
}
