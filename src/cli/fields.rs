//! What the command calls the fields of the library's options.

use crate::error::Error;

/// Arguments and fields as errors of the library name them, and what of the command sets them.
const OPTIONS: &[(&str, &str)] = &[
    ("act", "--act"),
    ("backend", "--backend"),
    ("bits", "--bits"),
    ("calibration", "--calibration"),
    ("context", "--context"),
    ("device", "--device"),
    ("drafts", "--draft-tokens"),
    ("dry_base", "--dry-base"),
    ("dry_multiplier", "--dry-multiplier"),
    ("float", "--float"),
    ("folder", "MODEL"),
    ("frequency_penalty", "--frequency-penalty"),
    ("group_size", "--group-size"),
    ("kv", "--kv"),
    ("logit_bias", "--logit-bias"),
    ("min_p", "--min-p"),
    ("padding", "--padding"),
    ("presence_penalty", "--presence-penalty"),
    ("priority", "--priority"),
    ("prompt_cache", "--prompt-cache"),
    ("reference", "--reference"),
    ("repetition_penalty", "--repetition-penalty"),
    ("stop", "--stop"),
    ("temperature", "--temperature"),
    ("text", "--text"),
    ("top_p", "--top-p"),
    ("typical_p", "--typical-p"),
];

/// The option that sets the field `name`; `name` itself where there is none.
pub fn option_of(name: &str) -> &str {
    let found = OPTIONS.iter().find(|(field, _)| *field == name);
    found.map_or(name, |(_, option)| option)
}

/// `error` in the words of the command: with the option in the place of a field.
pub fn in_options(error: Error) -> Error {
    match error {
        Error::Usage { name, what, kind } => Error::Usage {
            name: option_of(&name).to_owned(),
            what,
            kind,
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

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
        let e = in_options(Error::usage("prompt", "is long"));
        assert_eq!(e.to_string(), "prompt: is long");
    }
}
