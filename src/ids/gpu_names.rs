//! One table of GPU names: what drivers print and what people write, to the names of types.

/// Other names of types, as they are without spaces and punctuation. A type whose name is what [`slug`] leaves needs no entry.
const ALIASES: [(&str, &[&str]); 12] = [
    ("a4000", &["rtxa4000"]),
    ("a4500", &["rtxa4500"]),
    ("a5000", &["rtxa5000"]),
    ("a6000", &["rtxa6000"]),
    ("gtx1080ti", &["1080ti"]),
    // `2080` is what an earlier version detected.
    ("rtx2080ti", &["2080", "2080ti"]),
    ("rtx3080", &["3080"]),
    ("rtx3090", &["3090"]),
    ("rtx4090", &["4090"]),
    ("rtx5090", &["5090"]),
    ("rtx6000ada", &["6000ada"]),
    (
        "rtxpro6000",
        &[
            "rtxpro6000blackwellserveredition",
            "rtxpro6000blackwellworkstationedition",
            "rtxpro6000blackwellmaxqworkstationedition",
        ],
    ),
];

/// Words before the name of a model.
const BRANDS: [&str; 4] = ["nvidia", "tesla", "geforce", "quadro"];
/// Words after it that make no type of their own: form factors, kinds of memory, and fillers.
const DETAILS: [&str; 14] = [
    "pcie",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "nvl",
    "dgxs",
    "fhhl",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "generation",
    "gpu",
];

/// The type that a name means: known ones whatever their spelling, else the name itself in lower case.
pub(super) fn canonical(name: &str) -> String {
    let lower = name.to_lowercase();
    let first = words(&lower).next();
    if first.is_some_and(|word| BRANDS.contains(&word)) {
        return of_model(name);
    }
    let joined: String = words(&lower).collect();
    alias(&joined).map_or(lower, str::to_owned)
}

/// The type of a model as the driver names it: `a100` for "NVIDIA A100-SXM4-40GB". A model that is not in the table becomes
/// one word.
pub(super) fn of_model(model: &str) -> String {
    let slug = slug(&model.to_lowercase());
    match alias(&slug) {
        Some(name) => name.to_owned(),
        None if slug.is_empty() => "gpu".to_owned(),
        None => slug,
    }
}

/// The type that a name without spaces and punctuation stands for; its own name is one, too, if there is an entry.
fn alias(joined: &str) -> Option<&'static str> {
    let entry = ALIASES.iter().find(|(name, others)| *name == joined || others.contains(&joined));
    entry.map(|(name, _)| *name)
}

fn words(lower: &str) -> impl Iterator<Item = &str> {
    lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// The words of a model in one, without brands, memory sizes and form factors.
fn slug(lower: &str) -> String {
    let is_size = |word: &str| {
        let number = word.strip_suffix("gb");
        number.is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
    };
    words(lower).filter(|word| !BRANDS.contains(word) && !DETAILS.contains(word) && !is_size(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nvidia-smi --query-gpu=name` prints them.
    const MODELS: [(&str, &str); 49] = [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PCIE-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("A100-SXM4-40GB", "a100"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A2", "a2"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A16", "a16"),
        ("NVIDIA A30", "a30"),
        ("NVIDIA A40", "a40"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-SXM3-32GB", "v100"),
        ("Tesla V100-PCIE-16GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100"),
        ("Tesla V100-DGXS-32GB", "v100"),
        ("Tesla V100-FHHL-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla P4", "p4"),
        ("Tesla K80", "k80"),
        ("GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA GeForce RTX 2080", "rtx2080"),
        ("NVIDIA GeForce RTX 2080 SUPER", "rtx2080super"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx3090ti"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "rtx4070laptop"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("NVIDIA TITAN V", "titanv"),
        ("Quadro", "gpu"),
        ("", "gpu"),
    ];

    #[test]
    fn models_have_the_names_of_types() {
        for (model, name) in MODELS {
            assert_eq!(of_model(model), name, "{model}");
        }
    }

    #[test]
    fn known_types_are_recognised_however_they_are_spelt() {
        for name in ["2080", "2080ti", "2080 Ti", "RTX 2080 Ti", "rtx-2080-ti", "rtx2080ti"] {
            assert_eq!(canonical(name), "rtx2080ti", "{name}");
        }
        for (model, name) in MODELS.into_iter().filter(|(model, _)| model.starts_with("NVIDIA")) {
            assert_eq!(canonical(model), name);
            assert_eq!(canonical(name), name);
        }
        // Names of the user's own stay apart.
        for name in ["cpu", "t4", "a100", "a100-80gb", "my gpu", "mi300x"] {
            assert_eq!(canonical(name), name);
        }
        assert_eq!(canonical("My GPU"), "my gpu");
    }
}
