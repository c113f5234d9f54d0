//! The public interface: everything that users of the crate can name, read off the source and compared with a list that is
//! checked in, so that a change of it is seen. What macros make appears as it was given to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use crate::{
    items::{Item, Items},
    source::{module_of, rust_files, shown, tokens, without_tests},
};

const LIST: &str = "docs/public-api.txt";

#[test]
fn the_public_interface_is_as_it_is_written_down() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIST);
    let found = Library::read().interface();
    if env::var_os("UPDATE_PUBLIC_API").is_some() {
        fs::write(
            &path,
            found.join(
                "
",
            ) + "
",
        )
        .expect("it can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let written: Vec<&str> = written.lines().collect();
    let added =
        found.iter().filter(|line| !written.contains(&line.as_str())).map(|line| format!("+ {line}\n"));
    let removed = written
        .iter()
        .filter(|line| !found.iter().any(|found| found == *line))
        .map(|line| format!("- {line}\n"));
    let change: String = removed.chain(added).collect();
    assert!(
        change.is_empty(),
        "the public interface has changed:\n{change}If it is meant to, update {LIST}: UPDATE_PUBLIC_API=1 cargo test --test house"
    );
}

type ModulePath = Vec<String>;

/// All modules of the library by their path.
struct Library {
    modules: BTreeMap<ModulePath, Items>,
}

/// What is public so far.
#[derive(Default)]
struct Interface {
    /// Paths with what is said of them.
    lines: BTreeSet<(String, String)>,
    /// The public path of each definition.
    exposed: BTreeMap<(ModulePath, String), String>,
}

impl Library {
    fn read() -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut modules = BTreeMap::new();
        for path in rust_files(&source) {
            let inside =
                path.strip_prefix(&source).expect("it is inside").to_string_lossy().replace('\\', "/");
            let is_test = inside.split('/').any(|part| part == "tests" || part == "tests.rs");
            if inside != "main.rs" && !is_test {
                let text = fs::read_to_string(&path).expect("the file can be read");
                modules.insert(module_of(&inside), Items::read(&without_tests(&tokens(&text))));
            }
        }
        Self { modules }
    }

    /// One line for each public item.
    fn interface(&self) -> Vec<String> {
        let mut interface = Interface::default();
        self.expose_module(&[], &mut interface);
        self.expose_impls(&mut interface);
        interface.lines.into_iter().map(|(_, line)| line).collect()
    }

    /// What a module offers. The prelude comes last, because all it has is elsewhere, too.
    fn expose_module(&self, module: &[String], interface: &mut Interface) {
        let Some(items) = self.modules.get(module) else { return };
        for item in items.all.iter().filter(|item| item.is_public && item.kind != "mod") {
            interface.add(module, item, module);
        }
        for path in &items.public_uses {
            let name = path.last().expect("a path has a name");
            match self.definition(&self.absolute(module, path)) {
                Some((home, item)) => interface.add(&home, item, module),
                None => interface.say(&public_path(module, name), "item"),
            }
        }
        let mut children: Vec<&Item> =
            items.all.iter().filter(|item| item.is_public && item.kind == "mod" && !item.is_hidden).collect();
        children.sort_by_key(|child| child.name == "prelude");
        for child in children {
            interface.say(&public_path(module, &child.name), "mod");
            self.expose_module(&[module, std::slice::from_ref(&child.name)].concat(), interface);
        }
    }

    /// Methods and traits of public types, wherever in the library they are.
    fn expose_impls(&self, interface: &mut Interface) {
        for (module, items) in &self.modules {
            for block in &items.impls {
                let Some(path) = self.exposed_near(module, &block.of, interface) else { continue };
                let Some(of_trait) = &block.of_trait else {
                    for item in block.items.all.iter().filter(|item| item.is_public) {
                        interface.lines.extend(item.lines(&format!("{path}::{}", item.name)));
                    }
                    continue;
                };
                let name =
                    of_trait.split('<').next().and_then(|name| name.rsplit("::").next()).unwrap_or_default();
                let is_private =
                    self.nearest(module, name).is_some_and(|found| !interface.exposed.contains_key(&found));
                if !is_private {
                    interface.lines.insert((path.clone(), format!("impl {of_trait} for {path}")));
                }
            }
        }
    }

    fn exposed_near(&self, module: &[String], name: &str, interface: &Interface) -> Option<String> {
        interface.exposed.get(&self.nearest(module, name)?).cloned()
    }

    /// The definition of this name that shares most of its path with a module.
    fn nearest(&self, module: &[String], name: &str) -> Option<(ModulePath, String)> {
        let shared = |home: &ModulePath| home.iter().zip(module).take_while(|(a, b)| a == b).count();
        let defines = |items: &Items| items.all.iter().any(|item| item.name == name && item.is_type());
        let homes = self.modules.iter().filter(|(_, items)| defines(items)).map(|(home, _)| home);
        homes.max_by_key(|home| shared(home)).map(|home| (home.clone(), name.to_owned()))
    }

    /// A path from the root of the crate on, as far as it leads into it.
    fn absolute(&self, module: &[String], path: &[String]) -> ModulePath {
        let child = [module, &path[..1]].concat();
        match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [module, &path[1..]].concat(),
            "super" => [&module[..module.len() - 1], &path[1..]].concat(),
            _ if self.modules.contains_key(&child) => [module, path].concat(),
            _ => path.to_vec(),
        }
    }

    fn definition(&self, path: &[String]) -> Option<(ModulePath, &Item)> {
        let (name, home) = path.split_last()?;
        let items = self.modules.get(home)?;
        if let Some(item) = items.all.iter().find(|item| item.name == *name && item.kind != "mod") {
            return Some((home.to_vec(), item));
        }
        let passed_on = items.public_uses.iter().find(|path| path.last() == Some(name))?;
        self.definition(&self.absolute(home, passed_on))
    }
}

impl Interface {
    fn add(&mut self, home: &[String], item: &Item, module: &[String]) {
        let path = public_path(module, &item.name);
        let definition = (home.to_vec(), item.name.clone());
        if let Some(first) = self.exposed.get(&definition) {
            let line = format!("use {path} = {first}");
            self.lines.insert((path, line));
            return;
        }
        for (below, line) in item.lines(&path) {
            self.lines.insert((below, line));
        }
        self.exposed.insert(definition, path);
    }

    fn say(&mut self, path: &str, what: &str) {
        self.lines.insert((path.to_owned(), format!("{what} {path}")));
    }
}

fn public_path(module: &[String], name: &str) -> String {
    module.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("::")
}

#[test]
fn items_are_shown_with_what_is_public_of_them() {
    let shown_as = |text: &str| {
        let items = Items::read(&tokens(text));
        items
            .all
            .iter()
            .flat_map(|item| item.lines(&item.name))
            .map(|(_, line)| line)
            .collect::<Vec<_>>()
            .join(" | ")
    };
    for (text, expected) in [
        (
            "pub fn f<'a>(x: &'a mut [u8], y: impl Fn(A) -> B) -> Option<&'a str> { g() }",
            "fn f<'a>(x: &'a mut [u8], y: impl Fn(A) -> B) -> Option<&'a str>",
        ),
        (
            "#[derive(Clone, Debug)] pub struct A<T> where T: B { /// Text.\n pub a: Vec<T>, b: u8 }",
            "struct A<T> where T: B { a: Vec<T>, .. }: Clone, Debug",
        ),
        ("pub struct Id(pub u32);", "struct Id(u32)"),
        (
            "#[non_exhaustive] pub enum E { A, B(u8), #[x] C { d: f64 } }",
            "enum E, non-exhaustive | E::A | E::B(u8) | E::C { d: f64 }",
        ),
        (
            "pub trait T: Send { const N: u8; fn f(&self) -> u8 { 1 } }",
            "trait T: Send | const T::N: u8 | fn T::f(&self) -> u8",
        ),
        ("pub const A: [u8; 2] = [1, 2]; pub type M = Map<A, B>;", "const A: [u8; 2] | type M"),
    ] {
        assert_eq!(shown_as(text), expected);
    }
    assert_eq!(shown(&tokens("impl<T> A for B<T> where T: C + D")), "impl<T> A for B<T> where T: C + D");
}
