from lifelabel.cli import main

main()
