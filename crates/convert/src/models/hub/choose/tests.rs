use super::*;

fn chosen(names: &[&str]) -> Choice {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    choose(&names, None)
}

fn gguf(name: &str) -> Choice {
    Choice::Gguf(name.to_owned())
}

#[test]
fn quantizations_have_an_order() {
    let names = [
        "m-Q8_0.gguf",
        "m-Q4_K_M.gguf",
        "m-f16.gguf",
        "m-q4_1.gguf",
        "README.md",
    ];
    assert_eq!(chosen(&names), gguf("m-q4_1.gguf"));
    assert_eq!(chosen(&names[..2]), gguf("m-Q4_K_M.gguf"));
    assert_eq!(
        chosen(&["m.Q4_0.gguf", "m.Q4_0_4_8.gguf", "a.Q4_1.gguf"]),
        gguf("m.Q4_0.gguf")
    );
    assert_eq!(chosen(&["m-Q4_0_4_8.gguf", "m-Q6_K.gguf"]), gguf("m-Q6_K.gguf"));
    assert_eq!(chosen(&["m-BF16.gguf", "m-IQ4_NL.gguf"]), gguf("m-BF16.gguf"));
    assert_eq!(chosen(&["b.gguf", "a.gguf"]), gguf("a.gguf"));
    assert_eq!(
        chosen(&["m-1B-Q4_0.gguf", "m-1B-it-Q4_0.gguf"]),
        gguf("m-1B-Q4_0.gguf")
    );
}

#[test]
fn a_quantization_chooses_among_the_files() {
    let names = [
        "m-Q4_0.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "config.json",
        "m.safetensors",
    ];
    let names: Vec<String> = names.map(str::to_owned).into();
    for (quant, choice) in [
        ("Q4_K_M", gguf("m-Q4_K_M.gguf")),
        ("q8_0", gguf("m-Q8_0.gguf")),
        ("Q4", Choice::None),
        ("Q6_K", Choice::None),
    ] {
        assert_eq!(choose(&names, Some(quant)), choice, "{quant}");
    }
}

#[test]
fn first_parts_stand_for_models_and_projectors_do_not() {
    let parts = ["m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"];
    assert_eq!(chosen(&parts), gguf(parts[0]));
    assert_eq!(other_parts(parts[0]), parts[1..]);
    assert!(other_parts(parts[1]).is_empty());
    let with = |more| [&parts[..], more].concat();
    assert_eq!(chosen(&with(&["m-Q8_0.gguf"])), gguf("m-Q8_0.gguf"));
    let checkpoint = ["config.json", "model.safetensors"];
    assert_eq!(chosen(&with(&checkpoint)), gguf(parts[0]));
    for part in parts {
        assert_eq!(chosen(&[part]), Choice::Split);
        assert_eq!(chosen(&[&[part][..], &checkpoint].concat()), Choice::Checkpoint);
    }
    let alone = "m-Q4_0-00001-of-00001.gguf";
    assert_eq!(chosen(&[alone]), gguf(alone));
    assert_eq!(chosen(&["mmproj-m-f16.gguf"]), Choice::None);
    assert_eq!(
        chosen(&["mmproj-m-Q4_0.gguf", "m-Q8_0.gguf"]),
        gguf("m-Q8_0.gguf")
    );
}

#[test]
fn a_checkpoint_stands_at_the_root() {
    assert_eq!(chosen(&["config.json", "model.safetensors"]), Choice::Checkpoint);
    assert_eq!(chosen(&["config.json", "unet/model.safetensors"]), Choice::None);
    assert_eq!(chosen(&["model.safetensors"]), Choice::None);
    let names = [
        "config.json",
        "tokenizer.json",
        "vocab.json",
        "README.md",
        "a/config.json",
    ];
    let names: Vec<String> = names.map(str::to_owned).to_vec();
    assert_eq!(small(&names), ["config.json", "tokenizer.json", "vocab.json"]);
}
