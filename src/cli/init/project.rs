//! The Rust project of `init --rust`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Error, NewFile, for_shell, in_quotes, utf8};

const MANIFEST: &str = include_str!("../../../templates/rust/Cargo.toml.in");
const README: &str = include_str!("../../../templates/rust/README.md.in");
const MAIN: &str = include_str!("../../../templates/rust/main.rs");
const BUILD: &str = include_str!("../../../templates/rust/build.rs");
const STUDY: &str = include_str!("../../../templates/rust/study.yaml");
const IGNORED: &str = "/target\n/studies\n";

/// For those who have no checkout, and with it no `make libtorch`.
const LIBTORCH_OF_PYTHON: &str = "\
pip install torch==2.13.0       # its libtorch is what the program is linked with
export LIBTORCH=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')";

/// Words that cargo does not take for a package.
const WORDS: [&str; 45] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct",
    "super", "test", "trait", "true", "try", "type", "use", "while",
];

/// What a project is made of, and what to do next.
pub(super) fn files(folder: &Path, source: Option<&Path>) -> Result<(Vec<NewFile>, String), Error> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::NoFolder(folder.to_owned()));
    }
    let name = package_name(folder)?;
    let source = match source {
        Some(folder) => Some(given(folder)?),
        None => Some(PathBuf::from(env!("CARGO_MANIFEST_DIR"))).filter(|built| missing(built).is_none()),
    };
    let dependency = match &source {
        Some(source) => format!("path = {}", in_quotes(utf8(source)?)),
        None => format!("version = {}", in_quotes(env!("CARGO_PKG_VERSION"))),
    };
    let fetch = match &source {
        Some(source) => {
            format!("make -C {} libtorch    # gets libtorch (540 MB), once", for_shell(utf8(source)?))
        }
        None => LIBTORCH_OF_PYTHON.to_owned(),
    };
    let filled = |text: &str| {
        text.replace("{{name}}", &name)
            .replace("{{pollux-tune}}", &dependency)
            .replace("{{libtorch}}", &fetch)
    };
    let mut files = vec![
        NewFile::new(folder.join("Cargo.toml"), filled(MANIFEST)),
        NewFile::new(folder.join("build.rs"), BUILD),
        NewFile::new(folder.join("src/main.rs"), MAIN),
        NewFile::new(folder.join("study.yaml"), STUDY),
        NewFile::new(folder.join("README.md"), filled(README)),
        NewFile::new(folder.join(".gitignore"), IGNORED),
    ];
    if let Some(source) = source {
        files.push(NewFile::new(folder.join(".cargo/config.toml"), settings(&source)?));
        // The versions that pollux-tune is tested with; cargo leaves out what is not needed.
        if let Ok(versions) = fs::read_to_string(source.join("Cargo.lock")) {
            files.push(NewFile::new(folder.join("Cargo.lock"), versions));
        }
    }
    let next = format!("see {}", folder.join("README.md").display());
    Ok((files, next))
}

/// Settings of cargo: where `make libtorch` puts it.
fn settings(source: &Path) -> Result<String, Error> {
    let libtorch = source.join(".cache/libtorch");
    let libtorch = in_quotes(utf8(&libtorch)?);
    Ok(format!(
        "[env]\n# What `make libtorch` makes there; a LIBTORCH of your own comes first.\nLIBTORCH = {libtorch}\n"
    ))
}

/// The folder with the source that somebody names.
fn given(folder: &Path) -> Result<PathBuf, Error> {
    let source = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    match missing(&source) {
        None => Ok(source),
        Some(missing) => Err(Error::NoSource { folder: folder.to_owned(), missing }),
    }
}

/// What a checkout has, and this folder has not. A package out of a registry has no script that gets libtorch.
fn missing(folder: &Path) -> Option<&'static str> {
    ["Cargo.toml", "crates/c10d/Cargo.toml", "scripts/libtorch.py"]
        .into_iter()
        .find(|file| !folder.join(file).is_file())
}

fn package_name(folder: &Path) -> Result<String, Error> {
    // `.` has a name only as a whole path.
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        && !WORDS.contains(&name.as_str())
        && name != "pollux-tune";
    if is_name { Ok(name) } else { Err(Error::PackageName(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(files: &'a [NewFile], name: &str) -> &'a str {
        &files.iter().find(|file| file.path.ends_with(name)).expect("it is written").text
    }

    #[test]
    fn the_written_manifest_depends_on_what_the_tested_one_depends_on() {
        let tested = include_str!("../../../crates/template/Cargo.toml");
        let (files, _) = files(Path::new("mine"), None).expect("the name is one of a package");
        let written = text(&files, "Cargo.toml");
        for (package, features) in [("pollux-tune", "features = [\"torch\"]"), ("tch", "\"0.26\"")] {
            let of = |manifest: &str| {
                let line = manifest.lines().find(|line| line.starts_with(&format!("{package} =")));
                line.is_some_and(|line| line.contains(features))
            };
            assert!(of(tested) && of(written), "{package} in:\n{written}\n{tested}");
        }
        assert!(written.contains("name = \"mine\""), "{written}");
        assert!(files.iter().all(|file| !file.text.contains("{{")), "a place was not filled");
    }

    #[test]
    fn a_checkout_lends_its_path_its_libtorch_and_its_versions() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (files, _) = files(Path::new("mine"), Some(checkout)).expect("this is a checkout");
        let path = checkout.display().to_string();
        assert!(text(&files, "Cargo.toml").contains(&format!("path = \"{path}\"")));
        assert!(
            text(&files, ".cargo/config.toml").contains(&format!("LIBTORCH = \"{path}/.cache/libtorch\""))
        );
        assert!(text(&files, "README.md").contains(&format!("make -C {path} libtorch")));
        assert!(text(&files, "Cargo.lock").contains("name = \"tch\""));
    }

    #[test]
    fn names_that_cargo_refuses_are_refused() {
        for name in ["1st", "my study", "fn", "pollux-tune", "größe"] {
            assert!(matches!(files(Path::new(name), None), Err(Error::PackageName(_))), "{name}");
        }
        let wrong = files(Path::new("mine"), Some(Path::new("/proc")));
        assert!(matches!(wrong, Err(Error::NoSource { missing: "Cargo.toml", .. })));
    }
}
