//! Documents do not lead astray: what they link to is there, and so are the `make` targets they name.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn every_relative_link_points_to_a_file() {
    let mut broken = Vec::new();
    let documents = documents(root());
    assert!(documents.len() >= 6, "only {documents:?} were found");
    for document in documents {
        let text = fs::read_to_string(&document).expect("the document can be read");
        let folder = document.parent().expect("it is in a folder");
        let missing = |link: &String| !folder.join(link).exists();
        let missing = relative_links(&text).into_iter().filter(missing);
        broken.extend(missing.map(|link| format!("{}: {link}", document.display())));
    }
    assert!(broken.is_empty(), "links to nowhere:\n{}\n", broken.join("\n"));
}

#[test]
fn every_make_target_that_documents_name_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("there is a Makefile");
    let exists = |target: &str| makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
    for document in documents(root()) {
        let text = fs::read_to_string(&document).expect("the document can be read");
        for target in make_targets(&text) {
            assert!(exists(&target), "{}: there is no `make {target}`", document.display());
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Markdown files, without those of hidden and build folders.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        let name = path.file_name().expect("entries have names").to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Targets of links and pictures that are neither addresses nor places in the same document, without `#place`.
fn relative_links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            links.extend(
                line.split(open)
                    .skip(1)
                    .filter_map(|rest| rest.split_once(close))
                    .map(|part| part.0.to_owned()),
            );
        }
        if let Some((_, target)) = line.split_once("]: ").filter(|_| line.starts_with('[')) {
            links.push(target.to_owned());
        }
    }
    let path = |link: String| {
        let link = link.split([' ', '#']).next().unwrap_or_default().to_owned();
        (!link.is_empty() && !link.contains("://") && !link.starts_with("mailto:")).then_some(link)
    };
    links.into_iter().filter_map(path).collect()
}

/// Lines outside of code blocks, without `code`.
fn prose(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            lines.push(line.split('`').step_by(2).collect());
        }
    }
    lines
}

/// What stands after `make` in code: at the start of a line of a block, or of `code`.
fn make_targets(text: &str) -> Vec<String> {
    let mut inside = false;
    let mut code = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if inside {
            code.push(line.trim());
        } else {
            code.extend(line.split('`').skip(1).step_by(2));
        }
    }
    let target = |line: &str| line.strip_prefix("make ")?.split_whitespace().next().map(str::to_owned);
    code.into_iter().filter_map(target).collect()
}

#[test]
fn links_are_found_and_code_is_not() {
    let text = "[a](x.md) and ![b](img/y.svg \"title\") <img src=\"z.png\">, `[c](no.md)`\n\
        [d](https://example.org) [e](#place) [f](g.md#place)\n```\n[h](no.md)\n```\n[i]: j.md\n";
    assert_eq!(relative_links(text), ["x.md", "img/y.svg", "z.png", "g.md", "j.md"]);
    let text = "make sure to `make test`\n```sh\nmake fix # comment\n```\n";
    assert_eq!(make_targets(text), ["test", "fix"]);
}
