//! Names of the library's option fields on the command line.

use transformer_lite::unstable::error::{Error, ErrorKind};

/// Arguments and fields as the library's errors name them, and the options that set them.
const OPTIONS: &[(&str, &str)] = &[
    ("act", "--act"),
    ("backend", "--backend"),
    ("bits", "--bits"),
    ("calibration", "--calibration"),
    ("context", "--context"),
    ("cpu_isa", "--cpu-isa"),
    ("device", "--device"),
    ("drafts", "--draft-tokens"),
    ("dry_base", "--dry-base"),
    ("dry_multiplier", "--dry-multiplier"),
    ("float", "--float"),
    ("folder", "MODEL"),
    ("frequency_penalty", "--frequency-penalty"),
    ("group_size", "--group-size"),
    ("images", "--images"),
    ("kv", "--kv"),
    ("logit_bias", "--logit-bias"),
    ("min_p", "--min-p"),
    ("model", "MODEL"),
    ("output", "--output"),
    ("padding", "--padding"),
    ("presence_penalty", "--presence-penalty"),
    ("priority", "--priority"),
    ("prompt_cache", "--prompt-cache"),
    ("recording", "--recording"),
    ("reference", "--reference"),
    ("repetition_penalty", "--repetition-penalty"),
    ("reproducible", "--reproducible"),
    ("slice_ms", "--slice-ms"),
    ("stop", "--stop"),
    ("temperature", "--temperature"),
    ("text", "--text"),
    ("threads", "--threads"),
    ("top_p", "--top-p"),
    ("typical_p", "--typical-p"),
];

/// The option that sets the field `name`; `name` itself if there is none.
pub fn option_of(name: &str) -> &str {
    let found = OPTIONS.iter().find(|(field, _)| *field == name);
    found.map_or(name, |(_, option)| option)
}

/// `error` in the words of the command: with the option in the place of a field.
pub fn in_options(error: Error) -> Error {
    match error {
        Error::Usage { name, what, kind } => {
            // The prompt may be an argument, an option or standard input.
            let advice = match (name.as_str(), kind) {
                ("prompt", ErrorKind::ContextExceeded) => "; use a shorter prompt or a larger --context",
                _ => "",
            };
            Error::usage(option_of(&name), what + advice).of_kind(kind)
        }
        error => error,
    }
}

/// Turns an error about the contents of the file that `option` names into wrong usage of `option`.
pub fn in_file_of(option: &str, error: Error) -> Error {
    match &error {
        Error::File {
            path,
            what,
            kind,
            source,
            ..
        } => {
            let cause = source.iter().map(|e| format!(": {e}")).collect::<String>();
            Error::usage(option, format!("{}: {what}{cause}", path.display())).of_kind(*kind)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;
    use std::path::Path;
    use transformer_lite::unstable::error::Stage;

    #[test]
    fn each_field_has_an_option() {
        let mut fields: Vec<&str> = OPTIONS.iter().map(|(field, _)| *field).collect();
        fields.dedup();
        assert!(fields.is_sorted() && fields.len() == OPTIONS.len(), "{fields:?}");
        let command = Cli::command();
        for (field, option) in OPTIONS {
            let known = command
                .get_subcommands()
                .flat_map(|c| c.get_arguments())
                .any(|a| match option.strip_prefix("--") {
                    Some(long) => a.get_long() == Some(long),
                    None => a.is_positional() && a.get_id().as_str() == option.to_lowercase(),
                });
            assert!(known, "{field}: no command has {option}");
        }
        let e = in_options(Error::usage("top_p", "0 is not"));
        assert_eq!(e.to_string(), "--top-p: 0 is not");
        let long = Error::usage("prompt", "is long").of_kind(ErrorKind::ContextExceeded);
        let e = in_options(long);
        assert_eq!(e.kind(), ErrorKind::ContextExceeded);
        let text = e.to_string();
        assert!(
            text.starts_with("prompt: is long") && text.contains("--context"),
            "{text}"
        );
        let e = in_options(Error::usage("conversation", "is long"));
        assert_eq!(e.to_string(), "conversation: is long");
    }

    #[test]
    fn a_file_is_named_with_its_option() {
        let path = Path::new("p.bin");
        let damaged = Error::file(Stage::Text, path, "is cut off").of_kind(ErrorKind::PromptCacheDamaged);
        let e = in_file_of("--prompt-cache", damaged);
        assert_eq!(e.to_string(), "--prompt-cache: p.bin: is cut off");
        assert_eq!((e.kind(), e.is_usage()), (ErrorKind::PromptCacheDamaged, true));
        let e = in_file_of(
            "--grammar",
            Error::parse(Stage::Text, path, "is no JSON", "eof at 3"),
        );
        assert_eq!(e.to_string(), "--grammar: p.bin: is no JSON: eof at 3");
        assert_eq!(
            in_file_of("--grammar", Error::Interrupted).kind(),
            ErrorKind::Interrupted
        );
    }
}
