// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "Tlite",
    products: [.library(name: "Tlite", targets: ["Tlite"])],
    targets: [
        .systemLibrary(name: "CTlite"),
        .target(name: "Tlite", dependencies: ["CTlite"]),
    ]
)
