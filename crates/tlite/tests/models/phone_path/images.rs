//! Operands that kernels read through images, and drivers that refuse them.

use super::play::{self, Outcome, Run};
use super::quarantine::quarantined;
use super::{Add, FEW, Model, TOKENS, UNCUT, failing, of, with_faults};
use tlite_fake_driver::{Config, Fault, Profile, cl};
use tlite_testing::Text;

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    add("adreno_products_read_images", Box::new(images));
    add("adreno_products_read_images_of_rows", Box::new(images_of_rows));
    add("mali_reads_buffers", Box::new(no_images));
    add("a_wrong_image_form_is_not_used", Box::new(wrong_image_form));
    add(
        "refused_images_are_not_validated",
        Box::new(refused_images_are_not_validated),
    );
    for (name, from) in [("every", 1), ("one_of_a_recording", IMAGES_TRIED + 5)] {
        let run = move |model: &Model| images_are_refused(model, from);
        add(&format!("{name}_image_is_refused@adreno"), Box::new(run));
    }
}

/// Images that are made when a device is opened, to see whether they can be: three of each kind.
pub const IMAGES_TRIED: u64 = 6;

/// The form of `matvec_e0m` that takes weights of 4 bits in pairs, for arithmetic in halves.
const PAIRS: &str = "PAIRS";

/// An Adreno, in whose log lines about arguments name that form.
fn adreno_by_form() -> Config {
    Config {
        forms: vec![PAIRS.to_owned()],
        ..of(Profile::Adreno)
    }
}

/// The phone has arithmetic in halves, as the driver of this machine has or has not. All real ones
/// have it.
fn halves(profile: Profile) -> Result<bool, String> {
    let report = play::run(&["devices", "--json"], &of(profile))?.report()?;
    let mut devices = report["devices"].as_array().into_iter().flatten();
    let phone = devices.find(|d| d["backend"] == "opencl");
    phone
        .and_then(|d| d["f16_math"].as_bool())
        .ok_or_else(|| format!("no phone in {report}"))
}

/// Both kernel families of products with quantized weights are given images for their operand, and
/// nothing else, decoding from recordings included; but for the form in pairs, which reads buffers,
/// by eights. In halves this is that of all weights but the 8-bit ones of the head.
fn all_read_images(run: &Run) -> Outcome {
    for kernel in ["matvec_e0m", "matmul_e0m"] {
        let operand = format!("clSetKernelArg kernel={kernel} index=0 ");
        run.all(&operand, &format!("{operand}size=8 image=true = 0"))?;
    }
    let operand = format!("clSetKernelArg kernel=matvec_e0m form={PAIRS} index=0 ");
    if halves(Profile::Adreno)? {
        run.all(&operand, &format!("{operand}size=8 = 0"))?;
    } else if run.count(&operand) > 0 {
        return Err(format!("{PAIRS} where there is no arithmetic in halves"));
    }
    let recorded = run
        .lines("clEndRecordingQCOM ")
        .filter(|l| !l.contains(" by_image=0 "))
        .count();
    if recorded == 0 {
        return Err("nothing that reads an image is recorded".to_owned());
    }
    run.quiet()
}

/// By default, those of one axis.
fn images(model: &Model) -> Outcome {
    let run = model.run(&adreno_by_form(), TOKENS, &UNCUT)?;
    model.agrees(&run, TOKENS)?;
    let made = run.lines("clCreateImage ").skip(IMAGES_TRIED as usize).count();
    let wrong = run.lines("clCreateImage ").find(|l| !l.ends_with(" = 0"));
    if let Some(wrong) = wrong {
        return Err(format!("an image is refused: {wrong}"));
    }
    let of_parts = run
        .lines("clCreateImage type=10f6 format=10dd ")
        .filter(|l| !l.ends_with(" origin=0 = 0"));
    if made == 0 || of_parts.count() == 0 {
        return Err(format!("{made} images"));
    }
    // All are made with the recordings: more tokens take no more.
    let shorter = model.run(&of(Profile::Adreno), 2, &UNCUT)?;
    let fewer = shorter
        .lines("clCreateImage ")
        .skip(IMAGES_TRIED as usize)
        .count();
    if fewer != made {
        return Err(format!("{made} images for {TOKENS} tokens, {fewer} for 2"));
    }
    all_read_images(&run)
}

/// Those of two axes, whose rows and beginnings the fake driver checks.
fn images_of_rows(model: &Model) -> Outcome {
    let more = [&UNCUT[..], &["--images", "2d"]].concat();
    let run = model.run(&adreno_by_form(), TOKENS, &more)?;
    model.agrees(&run, TOKENS)?;
    let made: Vec<_> = run.lines("clCreateImage ").skip(IMAGES_TRIED as usize).collect();
    // CL_MEM_OBJECT_IMAGE2D of CL_HALF_FLOAT: 256 pixels of 8 bytes.
    let right = |l: &&str| {
        l.starts_with("clCreateImage type=10f1 format=10dd width=256 ")
            && l.contains(" row_pitch=2048 ")
            && l.ends_with(" = 0")
    };
    if made.is_empty() || !made.iter().all(right) {
        return Err(format!("{made:?}"));
    }
    all_read_images(&run)
}

fn no_images(model: &Model) -> Outcome {
    let run = model.phone(Profile::Mali)?;
    model.agrees(run, TOKENS)?;
    if let Some(line) = run.lines("clSetKernelArg ").find(|l| l.contains(" image=true")) {
        return Err(format!("a kernel reads an image: {line}"));
    }
    // The kernel of many rows for a Mali, in halves.
    let in_pairs = run.count("clEnqueueNDRangeKernel kernel=matmul_e0m_pairs ") > 0;
    let halves = halves(Profile::Mali)?;
    if in_pairs != halves {
        return Err(format!(
            "arithmetic in halves: {halves}; matmul_e0m_pairs: {in_pairs}"
        ));
    }
    Ok(())
}

/// Every image from this one on is refused.
pub fn refusals(from: u64) -> Vec<Fault> {
    failing(
        "clCreateImage",
        None,
        from..=from + 998,
        cl::IMAGE_FORMAT_NOT_SUPPORTED,
    )
}

/// A driver that lists images and refuses them, from the first or from another one on, is worked
/// with without them, and that is said once.
fn images_are_refused(model: &Model, from: u64) -> Outcome {
    let config = Config {
        faults: refusals(from),
        ..adreno_by_form()
    };
    let run = model.run(&config, TOKENS, &[])?;
    model.recovers(&run, Profile::Adreno, TOKENS)?;
    let told = run.warnings("backend::opencl::image", &["Adreno"]);
    if told != 1 {
        return Err(format!("{told} warnings: {}", run.errors));
    }
    // After the first refusal of a recording none is asked for.
    let asked = run.count("clCreateImage ") as u64;
    let most = if from > IMAGES_TRIED { from } else { IMAGES_TRIED };
    if asked > most {
        return Err(format!("{asked} images are asked for"));
    }
    run.has("clSetKernelArg kernel=matvec_e0m index=0 size=8 = 0")
}

/// The form of a kernel that reads images is wrong; from buffers the kernel is right.
fn wrong_image_form(model: &Model) -> Outcome {
    let config = Config {
        corrupt: Some("matvec_e0m".to_owned()),
        corrupt_text: Some(BY_IMAGE.to_owned()),
        ..of(Profile::Adreno)
    };
    quarantined(model, &config, "matvec_e0m images")
}

/// In the programs of `matvec_e0m` that read an image.
const BY_IMAGE: &str = "#define IMAGE_X";

/// What ran in place of a kernel that reads images is no verdict on that kernel: a later start, in
/// which images are made, checks it.
fn refused_images_are_not_validated(model: &Model) -> Outcome {
    let dir = tempfile::tempdir().text()?;
    let cache = dir.path().join("cache").display().to_string();
    let run = |config: &Config| play::generate_cached(&model.folder, config, FEW, &cache, &[]);
    let refusing = with_faults(Profile::Adreno, refusals(IMAGES_TRIED + 1));
    let first = run(&refusing)?;
    model.recovers(&first, Profile::Adreno, FEW)?;
    // The program that ran was checked, too.
    let again = run(&refusing)?;
    model.recovers(&again, Profile::Adreno, FEW)?;
    if (first.number("kernels_checked")?, again.number("kernels_checked")?) == (0, 0) {
        return Err("nothing was checked".to_owned());
    }
    let third = run(&of(Profile::Adreno))?;
    model.agrees(&third, FEW)?;
    third.quiet()?;
    if third.number("kernels_checked")? == 0 {
        return Err("kernels that read images were not checked".to_owned());
    }
    // They are known from then on.
    match run(&of(Profile::Adreno))?.number("kernels_checked")? {
        0 => Ok(()),
        checked => Err(format!("{checked} kernels checked again")),
    }
}
