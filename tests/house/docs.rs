//! Documents do not lead astray: what they link to is there, and so are the `make` targets they name. All pages are in the table of
//! contents.

use std::{
    collections::BTreeMap,
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
fn every_link_to_a_heading_finds_it() {
    let mut broken = Vec::new();
    let mut links = 0;
    for document in documents(root()) {
        let text = fs::read_to_string(&document).expect("the document can be read");
        let folder = document.parent().expect("it is in a folder");
        for link in all_links(&text) {
            let Some((path, place)) = link.split_once('#').filter(|(path, _)| !path.contains("://")) else {
                continue;
            };
            let target = if path.is_empty() { document.clone() } else { folder.join(path) };
            let Ok(target) = fs::read_to_string(target) else { continue };
            links += 1;
            if !anchors(&target).iter().any(|anchor| anchor == place) {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(links >= 20, "only {links} links to headings were found");
    assert!(broken.is_empty(), "links to headings that are not there:\n{}\n", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let docs = root().join("docs");
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).expect("there is a table of contents");
    let listed: Vec<PathBuf> = relative_links(&contents).iter().map(|link| docs.join(link)).collect();
    for page in documents(&docs) {
        let times = listed.iter().filter(|listed| **listed == page).count();
        let wanted = usize::from(!page.ends_with("SUMMARY.md"));
        assert_eq!(times, wanted, "{} in docs/SUMMARY.md", page.display());
    }
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
    let path = |link: String| {
        let link = link.split([' ', '#']).next().unwrap_or_default().to_owned();
        (!link.is_empty() && !link.contains("://") && !link.starts_with("mailto:")).then_some(link)
    };
    all_links(text).into_iter().filter_map(path).collect()
}

/// Targets of links and pictures.
fn all_links(text: &str) -> Vec<String> {
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
    links
}

/// What headings are linked by: their words in small letters, with `-` between, and a number if there are several of them.
fn anchors(text: &str) -> Vec<String> {
    let mut times = BTreeMap::<String, usize>::new();
    let mut inside = false;
    let mut anchors = Vec::new();
    for line in text.lines() {
        inside ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if inside || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().to_lowercase().replace(' ', "-");
        let name: String = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let time = times.entry(name.clone()).or_default();
        anchors.push(if *time == 0 { name } else { format!("{name}-{time}") });
        *time += 1;
    }
    anchors
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
    assert_eq!(all_links("[e](#place)"), ["#place"]);
    let text = "# A page\n## What `x` does, and why?\n```\n# no heading\n```\n### Twice\n## Twice\n#hash\n";
    assert_eq!(anchors(text), ["a-page", "what-x-does-and-why", "twice", "twice-1"]);
    let text = "make sure to `make test`\n```sh\nmake fix # comment\n```\n";
    assert_eq!(make_targets(text), ["test", "fix"]);
}
