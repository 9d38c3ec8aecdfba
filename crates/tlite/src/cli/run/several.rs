//! Several pictures, and the objects in pictures: one table, or a JSON object per picture.

use super::report::{Value, score};
use super::{Args, check_scores, picture, summarized};
use crate::cli::interrupt::Interrupt;
use crate::cli::load;
use crate::cli::output::{bar, count, note, printable, put, put_json, table, text_output, warning};
use serde::Serialize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::fmt::count_text;
use transformer_lite::unstable::runner::{Named, Runner};
use transformer_lite::unstable::vision::answer::Reading;
use transformer_lite::unstable::vision::boxes::Found;
use transformer_lite::unstable::vision::picture::{PictureOptions, Prepared, prepare};
use transformer_lite::unstable::vision::set;

/// A picture of `tlite run PICTURE... --json`.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Line {
    /// The file.
    picture: PathBuf,
    /// Outputs.
    outputs: Vec<Value>,
    /// Objects in the picture, with `--boxes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<Found>>,
    /// Why the picture has no outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Line {
    /// The outputs of a picture, written to `dir` if asked. Options are checked with the first one.
    fn new(
        args: &Args,
        reading: &Reading,
        item: &set::Item,
        (picture, outputs): (&Prepared, Vec<Named>),
        is_first: bool,
    ) -> Result<Self> {
        let (mut objects, mut classes) = (None, None);
        if args.boxes {
            let found = reading.objects(&outputs, picture, args.min_score.unwrap_or(super::MIN_SCORE));
            let found = found.map_err(|e| Error::usage("--boxes", e.to_string()).of_kind(e.kind()))?;
            (objects, classes) = (Some(found.0), found.1);
        }
        let dir = args.output_dir.as_ref().map(|dir| dir.join(&item.name));
        let values = summarized(args, reading, dir.as_deref(), &outputs)?;
        if is_first {
            check_scores(args, reading, &values, classes);
        }
        Ok(Self {
            picture: item.file.clone(),
            outputs: values,
            objects,
            error: None,
        })
    }

    /// The lines of the table.
    fn rows(&self, name: &Path) -> Vec<[String; 4]> {
        let row = |what: String, score: String, rest: String| [name.display().to_string(), what, score, rest];
        let unnamed = |class: usize| format!("class {class}");
        let mut rows = Vec::new();
        if let Some(objects) = &self.objects {
            rows.extend(objects.iter().map(|f| {
                let [left, top, right, bottom] = f.edges;
                row(
                    f.label.clone().unwrap_or_else(|| unnamed(f.class)),
                    format!("{:.1} %", 100.0 * f.score),
                    format!("{left:.0}, {top:.0} to {right:.0}, {bottom:.0}"),
                )
            }));
            if rows.is_empty() {
                rows.push(row("no objects".to_owned(), String::new(), String::new()));
            }
            return rows;
        }
        for output in &self.outputs {
            let named = |label: &Option<String>, class| label.clone().unwrap_or_else(|| unnamed(class));
            let top = output.top.iter();
            rows.extend(top.map(|t| row(named(&t.label, t.index), score(t), String::new())));
            if output.top.is_empty() {
                rows.push(row(output.title(), String::new(), output.range()));
            }
        }
        if self.error.is_some() {
            rows.push(row("failed".to_owned(), String::new(), String::new()));
        }
        rows
    }
}

/// Runs the pictures and prints what is in each. Those that fail are named, and make the command
/// fail after the others; but outputs that the options do not fit at all end it at once.
pub fn run(
    args: &Args,
    runner: &mut Runner,
    (options, reading): (&PictureOptions, &Reading),
    interrupt: &Interrupt,
) -> Result<()> {
    let paths: Vec<&Path> = args.inputs().map(|i| i.file.as_path()).collect();
    let items = set::pictures(&paths)?;
    let repeating = interrupt.generating();
    let line = bar(items.len());
    let (mut rows, mut failed, mut done) = (Vec::new(), 0usize, 0usize);
    let ran = set::run(
        runner,
        &items,
        options,
        &repeating.flag(),
        &mut |item, outputs| {
            let is_first = done == failed;
            let is_run = outputs.is_ok();
            let made = outputs.and_then(|found| Line::new(args, reading, item, found, is_first));
            let made = match made {
                Ok(made) => made,
                Err(e) if is_run && is_first && e.kind() == ErrorKind::Unsupported => return Err(e),
                Err(e) => {
                    failed += 1;
                    let (mut error, file) = (e.chain(), item.file.display().to_string());
                    if !error.contains(&file) {
                        error = format!("{file}: {error}");
                    }
                    warning(&error);
                    Line {
                        picture: item.file.clone(),
                        outputs: Vec::new(),
                        objects: None,
                        error: Some(error),
                    }
                }
            };
            done += 1;
            count(&line, done, items.len(), "pictures");
            if args.json {
                return put_json(&mut text_output(), &made);
            }
            rows.extend(made.rows(&item.name).into_iter().map(Vec::from));
            Ok(())
        },
    );
    line.finish_and_clear();
    load::print_notes(&runner.notes().collect::<Vec<_>>());
    if !rows.is_empty() {
        put(&mut text_output(), &printable(&table(&rows, 2)))?;
    }
    if ran.is_err() && done > 0 {
        note(&format!("{done} of {} done", count_text(items.len(), "picture")));
    }
    ran?;
    if failed == 0 {
        return Ok(());
    }
    let mut what = format!("{failed} of {} failed", count_text(items.len(), "picture"));
    if let Some(advice) = items.iter().find_map(|item| advice(args, runner, item, options)) {
        what += &format!("; {advice}");
    }
    Err(Error::other(Stage::Run, what))
}

/// How to ask for sizes that the model takes, if those of the picture do not fit.
fn advice(args: &Args, runner: &Runner, item: &set::Item, options: &PictureOptions) -> Option<String> {
    let (name, fact) = runner.inputs().next()?;
    let prepared = prepare(&item.file, fact, options).ok()?;
    let found = runner.check(&[(name.to_owned(), prepared.tensor)]).ok()?;
    let fits = runner.admits(&found).is_ok();
    let sized = args.picture.image_size.is_some();
    (!fits)
        .then(|| picture::advice(runner, &[fact], &found, sized))
        .flatten()
}
