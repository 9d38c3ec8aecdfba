//! The public interface names the types of all its fields and results. This file uses nothing else.

use transformer_lite::options::{
    Arithmetic, Checks, Dry, ImageUse, Isa, Penalties, ReplayMode, Values, WeightSource,
};
use transformer_lite::results::{
    Bindings, DeviceKind, DimError, Entry, Identity, Key, Kind, Known, Layout, Loading, Named, PassReport,
    PlaceName, Stats, Symbol, TensorError, Timing, Unused, Used,
};
use transformer_lite::{
    BackendChoice, Cancel, ChatTemplate, Dim, Error, ErrorKind, Fact, GenerateOptions, HostTensor,
    KernelCache, LoadOptions, Message, Model, ModelFolder, Note, OpenOptions, Placement, Priority, Runner,
    RunnerOptions, SamplerConfig, States,
};

#[test]
fn every_option_can_be_written() {
    let options = LoadOptions {
        place: Placement {
            backend: BackendChoice::Reference,
            options: OpenOptions {
                recording: ReplayMode::default(),
                images: ImageUse::default(),
                isa: None::<Isa>,
                ..OpenOptions::default()
            },
        },
        weights: WeightSource::Files,
        ..LoadOptions::default()
    };
    assert_eq!(
        options,
        LoadOptions {
            place: options.place.clone(),
            ..LoadOptions::default()
        }
    );
    let runs = RunnerOptions {
        checks: Checks::On(None),
        integer: Some(Arithmetic::Float),
        ..RunnerOptions::default()
    };
    assert!(matches!(runs.checks, Checks::On(None)));
    let sampling = SamplerConfig {
        penalties: Penalties::default(),
        dry: Dry::default(),
        ..SamplerConfig::sampling()
    };
    assert!(sampling.is_random());
    let answer = GenerateOptions {
        template_values: Values::new(),
        ..GenerateOptions::default()
    };
    assert!(answer.template_values.is_empty());
}

#[test]
fn what_a_template_raises_is_found_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"chat_template": "{{ raise_exception('no') }}"}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let template = ChatTemplate::find(&ModelFolder::open(dir.path()).unwrap())
        .unwrap()
        .unwrap();
    let messages = [Message::user("hello")];
    let rendered = template.render(&messages, &Values::new(), true, &Cancel::default());
    let e: Error = rendered.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TemplateRefused);
    let cause = std::error::Error::source(&e).unwrap();
    let raised = cause.downcast_ref::<transformer_lite::results::Raised>().unwrap();
    assert_eq!(raised.0, "no");
}

/// The type of [`KernelCache::clear`].
type Clear = fn(&KernelCache, Option<Kind>) -> transformer_lite::Result<(usize, u64)>;

/// Compiled only: what functions return has a name.
#[expect(dead_code, reason = "the types matter")]
struct Reports {
    place: fn(&Model) -> PlaceName,
    used: fn(&Model) -> transformer_lite::Result<Used>,
    stats: fn(&Model) -> Option<Stats>,
    passes: fn(&Runner) -> &[PassReport],
    profile: fn(&mut Runner, &[Named]) -> transformer_lite::Result<Vec<Timing>>,
    check: fn(&Runner, &[Named]) -> transformer_lite::Result<Bindings>,
    entries: fn(&KernelCache) -> transformer_lite::Result<Vec<Entry>>,
    clear: Clear,
    get: fn(&KernelCache, Kind, &Key) -> Option<Vec<u8>>,
    priority: fn(DeviceKind) -> Option<Priority>,
    identity: fn(&dyn States) -> transformer_lite::Result<Identity>,
    layout: fn(&Identity) -> &Layout,
    note: fn(Unused) -> Note,
    loading: fn(Loading<'_>),
    known: fn(&Fact) -> &Known,
    symbol: fn(&Dim) -> Option<&Symbol>,
    add: fn(&Dim, &Dim) -> Result<Dim, DimError>,
    bytes: fn(&HostTensor) -> Result<&[u8], TensorError>,
}
