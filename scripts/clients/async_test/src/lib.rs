//! `async_test` for the suite of redis-rs: its own macro is a crate that is not published. It runs a test on tokio, with a
//! connection if the test takes one.

use proc_macro::{TokenStream, TokenTree};

#[proc_macro_attribute]
pub fn async_test(_: TokenStream, item: TokenStream) -> TokenStream {
    let trees: Vec<TokenTree> = item.into_iter().collect();
    let place = |word: &str| trees.iter().position(|it| it.to_string() == word);
    let (Some(begin), Some(at)) = (place("async"), place("fn")) else {
        panic!("async_test is for async functions")
    };
    let name = trees[at + 1].to_string();
    let TokenTree::Group(arguments) = &trees[at + 2] else { panic!("{name} has no arguments") };
    let attributes: String = trees[..begin].iter().map(|it| format!("{it} ")).collect();
    let function: TokenStream = trees[begin..].iter().cloned().collect();
    let call = match arguments.stream().is_empty() {
        true => format!("{name}().await;"),
        false => format!(
            "let ctx = TestContext::new(); {name}(ctx.async_connection().await.unwrap()).await;"
        ),
    };
    let body = format!("{function} block_on_all(async move {{ {call} Ok::<(), redis::RedisError>(()) }}, RuntimeType::Tokio).unwrap();");
    format!("#[test] {attributes} fn {name}() {{ {body} }}").parse().expect("the text is Rust")
}
