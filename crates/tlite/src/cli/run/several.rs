//! Several pictures, and the objects in pictures: one table, or a JSON object per picture.

use super::report::{Value, score};
use super::{Args, write_outputs};
use crate::cli::interrupt::Interrupt;
use crate::cli::load;
use crate::cli::output::{bar, count, note, printable, put, put_json, table, text_output, warning};
use serde::Serialize;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::fmt::count_text;
use transformer_lite::unstable::runner::{Named, Runner};
use transformer_lite::unstable::vision::answer::Reading;
use transformer_lite::unstable::vision::boxes::Found;
use transformer_lite::unstable::vision::picture::{PictureOptions, Prepared};
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
    /// The outputs of a picture, written to `dir` if asked.
    fn new(args: &Args, reading: &Reading, item: &set::Item, found: (&Prepared, Vec<Named>)) -> Result<Self> {
        let (picture, outputs) = found;
        let objects = match args.boxes {
            false => None,
            true => {
                let found = reading.objects(&outputs, picture, args.min_score.unwrap_or(super::MIN_SCORE));
                Some(found.map_err(|e| Error::usage("--boxes", e.to_string()))?)
            }
        };
        if let (Some(labels), Some((_, Some(classes)))) = (&reading.labels, &objects) {
            super::check_labels(labels.classes(), *classes);
        }
        let dir = args.output_dir.as_ref().map(|dir| dir.join(&item.name));
        let files = dir.map(|dir| write_outputs(args, &dir, &outputs)).transpose()?;
        let values = outputs.iter().enumerate().map(|(i, (name, tensor))| {
            let file = files.as_ref().and_then(|f| f.get(i).cloned());
            Value::output(name, tensor, file, reading)
        });
        Ok(Self {
            picture: item.file.clone(),
            outputs: values.collect(),
            objects: objects.map(|(found, _)| found),
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

/// Runs the pictures and prints what is in each. Those that cannot be read are named, and make the
/// command fail after the others.
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
            let made = match outputs {
                Ok(found) => Line::new(args, reading, item, found)?,
                Err(e) => {
                    failed += 1;
                    let error = e.chain();
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
    match failed {
        0 => Ok(()),
        n => {
            let what = format!("{n} of {} failed", count_text(items.len(), "picture"));
            Err(Error::other(Stage::Run, what))
        }
    }
}
