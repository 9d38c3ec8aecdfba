//! Options of speculative decoding.

use super::fields::option_of;
use super::load::load;
use super::options::{ExecOptions, whole};
use super::output::detail;
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::load::{Loading, MAX_DRAFTS, Purpose};
use transformer_lite::unstable::llm::{Draft, LoadOptions, ModelDraft, ModelFolder, NgramDraft, Tokenizer};

/// How tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftKind {
    /// Propose the tokens that followed the same text earlier in the context
    Ngram,
}

/// Options of commands that can draft.
#[derive(Clone, Debug, clap::Args)]
pub struct DraftOptions {
    /// Speculative decoding with this kind of draft
    ///
    /// The model verifies the drafted tokens in one run and keeps those that it would have chosen.
    /// If two tokens are almost equally likely, the choice may differ from that without a draft.
    /// The length of drafts adapts to their acceptance rate and to measured run times; if drafts do
    /// not pay, none are used.
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        conflicts_with = "draft_model",
        hide_short_help = true
    )]
    draft: Option<DraftKind>,
    /// Speculative decoding with the draft model in DIR, which must have the same tokenizer
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    draft_model: Option<PathBuf>,
    /// Maximum number of tokens per draft, from 1 to 64 [default: 15]
    #[arg(long, value_name = "N", value_parser = draft_tokens, hide_short_help = true)]
    draft_tokens: Option<usize>,
}

fn draft_tokens(text: &str) -> Result<usize, String> {
    whole(text, 1, MAX_DRAFTS)
}

/// Default number of tokens per draft.
const DRAFT_TOKENS: usize = 15;

impl DraftOptions {
    /// Maximum number of tokens per draft; 0 without a draft.
    pub fn most(&self) -> usize {
        match self.draft.is_some() || self.draft_model.is_some() {
            true => self.draft_tokens.unwrap_or(DRAFT_TOKENS),
            false => 0,
        }
    }

    /// Usage errors that need no model: a draft model that is not a model folder, `--draft-tokens`
    /// without a draft.
    pub fn check(&self) -> Result<()> {
        if self.draft_tokens.is_some() && self.most() == 0 {
            let what = "has no effect without --draft or --draft-model";
            return Err(Error::usage("--draft-tokens", what));
        }
        if let Some(dir) = &self.draft_model {
            ModelFolder::holding("--draft-model", dir, &["tokenizer.json", "model.onnx"])?;
        }
        Ok(())
    }

    /// The draft, if one is asked for. `on_progress` and errors are those of [`load_draft_model`].
    pub fn load(
        &self,
        exec: &ExecOptions,
        tokenizer: &Tokenizer,
        on_progress: &mut dyn FnMut(Loading<'_>),
    ) -> Result<Option<Box<dyn Draft>>> {
        if let Some(dir) = &self.draft_model {
            let draft = load_draft_model(dir, exec, tokenizer, &mut |step| match step {
                Loading::Memory(memory) => {
                    detail(&format!("draft model: memory {memory}"));
                }
                step => on_progress(step),
            });
            return match draft {
                Ok(draft) => Ok(Some(Box::new(draft))),
                Err(Error::Usage { name, what, kind }) => {
                    let what = format!("{}: {}: {what}", dir.display(), option_of(&name));
                    Err(Error::usage("--draft-model", what).of_kind(kind))
                }
                Err(e) => {
                    let (kind, what) = (e.kind(), format!("--draft-model {}", dir.display()));
                    Err(Error::caused(Stage::Run, what, e).of_kind(kind))
                }
            };
        }
        Ok(self
            .draft
            .map(|DraftKind::Ngram| -> Box<dyn Draft> { Box::new(NgramDraft::default()) }))
    }
}

/// The model in `dir` as a draft for one with the tokens of `tokenizer`. Its context is that of the
/// command, limited to what the draft model supports. `on_progress` is called as by [`load`]. A
/// usage error for a model with other tokens, and errors of loading.
fn load_draft_model(
    dir: &Path,
    exec: &ExecOptions,
    tokenizer: &Tokenizer,
    on_progress: &mut dyn FnMut(Loading<'_>),
) -> Result<ModelDraft> {
    if !Tokenizer::load(dir)?.has_tokens_of(tokenizer) {
        let what = "the vocabulary differs from the model's; a draft model needs the same tokenizer";
        return Err(Error::usage("tokenizer.json", what));
    }
    let folder = ModelFolder::open(dir)?;
    let options = exec.load_options();
    let most = folder.config.max_position_embeddings;
    let options = LoadOptions {
        context: options
            .context
            .map(|asked| most.map_or(asked, |most| asked.min(most))),
        greedy: true,
        ..options
    };
    let loaded = load(&folder, &options, Purpose::Generation, on_progress)?;
    Ok(ModelDraft::new(loaded.model()?))
}
